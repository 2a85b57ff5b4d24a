"""What gRPC says of a peer that it cannot reach, said in few words; what a peer says itself is left as it is."""

import pytest

from fedstack import errors
from fedstack.transport.wire.connection_errors import listed, reason_of
from fedstack.transport.wire.status import Code, error_from_status

FAILED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:80: "


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (FAILED + "Failed to connect to remote host: Connection refused", "nobody listens there (connection refused)"),
        (FAILED + "connect failed: addr: unix:/s error: No such file or directory", "there is no such socket"),
        ("DNS resolution failed for nowhere:80: C-ares status is not ARES_SUCCESS", "there is no host of that name"),
        (
            "errors resolving nowhere:80: [address lookup failed: Domain name not found]",
            "there is no host of that name",
        ),
        (FAILED + "Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "it does not talk TLS"),
        (FAILED + "Hostname Verification Check failed.", "its certificate is for another name"),
        (FAILED + "CERTIFICATE_VERIFY_FAILED: certificate has expired", "its certificate is not valid today"),
        (FAILED + "Socket closed", "it hangs up at once"),
        (FAILED + "tcp handshaker: timed out", "it does not answer"),
        (FAILED + "Trying to connect an http1.x server", "it talks something else than gRPC"),
        ("Socket closed", "the connection broke off"),
        ("recvmsg:Connection reset by peer", "the connection broke off"),
        ("keepalive watchdog timeout", "it does not answer"),
    ],
)
def test_grpcs_own_messages_become_few_words(message, found):
    error = error_from_status(Code.UNAVAILABLE, message, None, "worker:80")
    assert f"Expected to reach the server at worker:80, found that {found}; " in str(error)
    assert error.causes == {"worker:80": found}
    assert FAILED not in str(error)


@pytest.mark.parametrize("message", ["", "the database: Connection refused", "busy: Socket closed to newcomers"])
def test_what_a_peer_says_is_left_as_it_is(message):
    assert reason_of(message) is None
    error = error_from_status(Code.UNAVAILABLE, message, None, "worker:80")
    assert isinstance(error, errors.WorkerUnavailableError)
    assert message in str(error)


def test_each_cause_is_a_line():
    assert listed({"a:1": "it is gone", "b:2": "no answer"}) == "\n  a:1: it is gone\n  b:2: no answer"
