"""Says in a few words why a peer cannot be reached; gRPC's own are many, and differ from release to release."""

import re
from collections.abc import Mapping

import attrs

from fedstack.errors import AuthenticationError, FedstackError, WorkerUnavailableError


@attrs.frozen
class Reason:
    """Why a peer cannot be reached or used.

    Attributes:
      found: What is wrong, as in "nobody listens there".
      advice: What to do about it.
      error: What to raise; an error that is not retryable says that waiting does not help.
    """

    found: str
    advice: str
    error: type[FedstackError] = WorkerUnavailableError

    def error_at(self, address: str) -> FedstackError:
        """Returns the error to raise; its `causes` have the reason once more, for lists of workers."""
        error = self.error(f"Expected to reach the server at {address}, found that {self.found}; {self.advice}")
        error.causes = {address: self.found}
        return error


NOBODY = Reason("nobody listens there (connection refused)", "start one with `fedstack serve`, or correct the address")
NO_SOCKET = Reason("there is no such socket", "start one with `fedstack serve --unix-socket`, or correct the path")
NO_HOST = Reason("there is no host of that name", "correct the name")
_NO_WAY = Reason("there is no way to it from here", "correct the address, and look for a firewall in between")
NO_ANSWER = Reason("it does not answer", "see whether it is busy, and look for a firewall in between")
BROKEN_OFF = Reason("the connection broke off", "see whether it still runs")
_HANGS_UP = Reason("it hangs up at once", "see whether it talks gRPC, and which credentials it asks for")
_OTHER_LANGUAGE = Reason("it talks something else than gRPC", "correct host and port")
_NO_TLS = Reason("it does not talk TLS", "correct the address, or dial without TLS", AuthenticationError)
_OTHER_NAME = Reason(
    "its certificate is for another name",
    "dial the name that it is for, or give that as server_name",
    AuthenticationError,
)
_UNTRUSTED = Reason(
    "its certificate is not from an authority that we trust", "give the right root_certificates", AuthenticationError
)
_NOT_VALID = Reason("its certificate is not valid today", "give it a new one, or set the clock", AuthenticationError)
_UNUSABLE = Reason(
    "our own certificates or key cannot be used",
    "see whether the files are whole and fit each other",
    AuthenticationError,
)
_NO_HANDSHAKE = Reason(
    "it and we do not agree about TLS", "see that each side trusts the other's certificate", AuthenticationError
)
# The first that fits counts.
_REASONS = (
    (re.compile(r"connection refused", re.IGNORECASE), NOBODY),
    (re.compile(r"no such file or directory", re.IGNORECASE), NO_SOCKET),
    (re.compile(r"errors resolving|DNS resolution|name not found|lookup", re.IGNORECASE), NO_HOST),
    (re.compile(r"WRONG_VERSION_NUMBER"), _NO_TLS),
    (re.compile(r"hostname verification|not in peer certificate", re.IGNORECASE), _OTHER_NAME),
    (re.compile(r"has expired|not yet valid", re.IGNORECASE), _NOT_VALID),
    (re.compile(r"CERTIFICATE_VERIFY_FAILED"), _UNTRUSTED),
    (re.compile(r"create security handshaker", re.IGNORECASE), _UNUSABLE),
    (re.compile(r"handshake failed|verification check failed", re.IGNORECASE), _NO_HANDSHAKE),
    (re.compile(r"no route|unreachable", re.IGNORECASE), _NO_WAY),
    (re.compile(r"http1|missing expected", re.IGNORECASE), _OTHER_LANGUAGE),
    (re.compile(r"time(d )?out", re.IGNORECASE), NO_ANSWER),
    (re.compile(r"failed to connect.*(closed|reset|end of tcp)", re.IGNORECASE | re.DOTALL), _HANGS_UP),
    (re.compile(r"closed|reset|broken pipe|recvmsg|sendmsg|goaway|end of tcp", re.IGNORECASE), BROKEN_OFF),
)
# How messages begin that are gRPC's own; all others are what a peer says.
_OWN = re.compile(
    r"failed to connect to all addresses|errors resolving|DNS resolution|socket closed|connection reset|recvmsg|"
    r"sendmsg|broken pipe|keepalive|ping timeout|endpoint|transport|stream removed|goaway|trying to connect|end of tcp|"
    r"connection (closed|aborted|refused)|connect(ion)? time|too many pings|(ssl|tls) handshake|custom verification",
    re.IGNORECASE,
)


def reason_of(message: str) -> Reason | None:
    """Returns the reason in a message of gRPC's; `None` for one that a peer sent, or that is new."""
    if not _OWN.match(message):
        return None
    return next((reason for pattern, reason in _REASONS if pattern.search(message)), None)


def listed(causes: Mapping[str, str]) -> str:
    """Returns lines for the end of a message: each address, and what is wrong there."""
    return "".join(f"\n  {address}: {cause}" for address, cause in causes.items())
