"""What gRPC says of a peer that it cannot reach, said in few words; what a peer says itself is left as it is."""

import pytest

from fedstack import errors
from fedstack.transport.wire import connection_errors as causes
from fedstack.transport.wire.connection_errors import OPTIONS, Reason, listed, reason_of
from fedstack.transport.wire.status import Code, error_from_status

FAILED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:80: "
REASONS = [reason for reason in vars(causes).values() if isinstance(reason, Reason)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (FAILED + "Failed to connect to remote host: Connection refused", causes.NOT_LISTENING),
        (FAILED + "connect failed: addr: unix:/s error: No such file or directory", causes.NO_SOCKET),
        ("DNS resolution failed for nowhere:80: C-ares status is not ARES_SUCCESS", causes.NO_HOST),
        ("errors resolving nowhere:80: [address lookup failed: Domain name not found]", causes.NO_HOST),
        (FAILED + "Failed to connect to remote host: No route to host", causes.NO_WAY),
        (FAILED + "Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", causes.NO_TLS),
        (FAILED + "Hostname Verification Check failed.", causes.OTHER_NAME),
        (FAILED + "CERTIFICATE_VERIFY_FAILED: certificate has expired", causes.NOT_VALID),
        (FAILED + "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", causes.UNTRUSTED),
        (FAILED + "Failed to create security handshaker.", causes.NO_HANDSHAKE),
        (FAILED + "Ssl handshake failed: SSL_ERROR_SSL: TLSV1_ALERT_UNKNOWN_CA", causes.NO_HANDSHAKE),
        (FAILED + "Socket closed", causes.HANGS_UP),
        (FAILED + "tcp handshaker: timed out", causes.NO_ANSWER),
        (FAILED + "Trying to connect an http1.x server", causes.OTHER_LANGUAGE),
        ("Socket closed", causes.BROKEN_OFF),
        ("recvmsg:Connection reset by peer", causes.BROKEN_OFF),
        ("keepalive watchdog timeout", causes.NO_ANSWER),
    ],
)
def test_grpcs_own_messages_become_few_words(message: str, reason: Reason) -> None:
    error = error_from_status(Code.UNAVAILABLE, message, None, "worker:80")
    assert type(error) is reason.error
    assert str(error) == str(reason.error_at("worker:80"))
    assert str(error).startswith(f"Cannot use the server at worker:80: {reason.found}; ")


@pytest.mark.parametrize("message", ["", "the database: Connection refused", "busy: Socket closed to newcomers"])
def test_what_a_peer_says_is_left_as_it_is(message: str) -> None:
    assert reason_of(message) is None
    error = error_from_status(Code.UNAVAILABLE, message, None, "worker:80")
    assert isinstance(error, errors.WorkerUnavailableError)
    assert message in str(error)


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.found)
def test_a_reason_says_what_is_wrong_and_what_to_do(reason: Reason) -> None:
    error = reason.error_at("worker:80", "so it says", OPTIONS)
    assert str(error).startswith(f"Cannot use the server at worker:80: {reason.found} (so it says); ")
    assert "{" not in str(error)
    [cause] = error.causes.values()
    assert cause.startswith(f"{reason.found} (so it says)")
    # Whoever waits for what waiting does not mend wants to know what does.
    assert (";" in cause) == isinstance(error, errors.AuthenticationError)


def test_each_cause_is_a_line() -> None:
    assert listed({"a:1": "it is gone", "b:2": "no answer"}) == "\n  a:1: it is gone\n  b:2: no answer"
