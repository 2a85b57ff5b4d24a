"""Lists the reasons why a peer cannot be reached or used, for errors of gRPC and for faults that probing finds."""

import re
from collections.abc import Mapping

import attrs

from fedstack.errors import AuthenticationError, FedstackError, WorkerUnavailableError


@attrs.frozen
class Words:
    """The names of the parts of the credentials where users give them, and how the peer is started."""

    authority: str
    certificate: str
    server_name: str
    token: str
    no_tls: str
    serve: str = "fedstack serve"


ARGUMENTS = Words(
    authority="root_certificates",
    certificate="certificate and private_key",
    server_name="server_name",
    token="ClientCredentials(token=...)",
    no_tls="certificates",
)
OPTIONS = Words(
    authority="--tls-ca",
    certificate="--tls-cert and --tls-key",
    server_name="--server-name",
    token="--token-file",
    no_tls="the TLS options",
)

OF_WORKER = Words(
    authority="--call-ca at the worker (ServerConfig.client_credentials)",
    certificate="--call-cert and --call-key at the worker (ServerConfig.client_credentials)",
    server_name="ServerConfig.client_credentials, as server_name, at the worker",
    token="--call-token-file at the worker (ServerConfig.client_credentials)",
    no_tls="the options --call-ca and --call-cert at the worker",
)


@attrs.frozen
class Reason:
    """Why a peer cannot be reached or used.

    Attributes:
      found: The fault, as in "nothing listens there".
      advice: What to do about it. Fields in braces are the `Words` and the address.
      error: The error class; one that is not retryable says that waiting does not help.
    """

    found: str
    advice: str
    error: type[FedstackError] = WorkerUnavailableError

    def error_at(self, address: str, why: str = "", words: Words = ARGUMENTS) -> FedstackError:
        """Returns the error to raise; its `causes` have the reason once more, for lists of workers.

        Args:
          address: The peer.
          why: More about the fault, in a few words.
          words: The names of the parts of the credentials.
        """
        found = f"{self.found} ({why})" if why else self.found
        advice = self.advice.format(address=address, **attrs.asdict(words))
        error = self.error(f"Cannot use the server at {address}: {found}; {advice}")
        # What to do about peers that are away is the same for all of a list, and stands at its head.
        error.causes = {address: f"{found}; {advice}" if self.error is AuthenticationError else found}
        return error


NOT_LISTENING = Reason("nothing listens there (connection refused)", "start one with `{serve}`, or correct the address")
NO_SOCKET = Reason("there is no such socket", "start one with `{serve} --unix-socket`, or correct the path")
NOT_A_SOCKET = Reason("it is not a socket", "give the path that the server was given as --unix-socket")
LEFT_BEHIND = Reason("nothing listens there: its server left the socket behind", "start it again")
NO_HOST = Reason("there is no host of that name", "correct the name")
NO_WAY = Reason("there is no way to it from here", "correct the address, and look for a firewall in between")
NO_ANSWER = Reason(
    "it does not answer", "see whether it is busy or paused, look for a firewall in between, or correct the address"
)
BROKEN_OFF = Reason("the connection broke off", "see whether it still runs")
HANGS_UP = Reason("it hangs up at once", "see whether it runs and talks gRPC, and whether it asks for {certificate}")
OTHER_LANGUAGE = Reason("it does not talk gRPC", "correct host and port")
NO_TLS = Reason(
    "it does not talk TLS, and was dialled with TLS",
    "dial grpc://{address} without {no_tls}, or correct the address",
    AuthenticationError,
)
TLS = Reason(
    "it talks TLS, and was dialled without",
    "give the certificate of its authority with {authority}",
    AuthenticationError,
)
OTHER_NAME = Reason(
    "its certificate is for other names",
    "dial a name that it is for, or give that as {server_name}",
    AuthenticationError,
)
UNTRUSTED = Reason(
    "its certificate is not from an authority that we trust", "give the right {authority}", AuthenticationError
)
NOT_VALID = Reason(
    "its certificate, or its authority's, is not valid today",
    "give the server a new one, or set the clock of this machine",
    AuthenticationError,
)
NO_HANDSHAKE = Reason(
    "it and we do not agree about TLS",
    "see that each side trusts the other's certificate, and that ours and its key are usable",
    AuthenticationError,
)
WANTS_CERTIFICATE = Reason("it asks for a certificate of ours", "give {certificate}", AuthenticationError)
CERTIFICATE_REFUSED = Reason(
    "it does not accept our certificate",
    "give one from an authority that it trusts with {certificate}",
    AuthenticationError,
)
CERTIFICATE_NOT_VALID = Reason(
    "it does not accept our certificate",
    "give a new one with {certificate}, or set the clock of this machine",
    AuthenticationError,
)
WANTS_TOKEN = Reason("it asks for a token", "give {token}", AuthenticationError)
TOKEN_NOT_ACCEPTED = Reason("it does not accept our token", "give the right {token}", AuthenticationError)

# How gRPC words some of them, which differs from release to release. The first that fits counts.
_IN_GRPCS_WORDS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), reason)
    for pattern, reason in (
        ("connection refused", NOT_LISTENING),
        ("no such file or directory", NO_SOCKET),
        ("errors resolving|DNS resolution|name not found|lookup", NO_HOST),
        ("wrong_version_number", NO_TLS),
        ("hostname verification|not in peer certificate", OTHER_NAME),
        ("has expired|not yet valid", NOT_VALID),
        ("certificate_verify_failed", UNTRUSTED),
        ("create security handshaker|handshake failed|verification check failed", NO_HANDSHAKE),
        ("no route|unreachable", NO_WAY),
        ("http1|missing expected", OTHER_LANGUAGE),
        ("time(d )?out", NO_ANSWER),
        ("failed to connect.*(closed|reset|end of tcp)", HANGS_UP),
        ("closed|reset|broken pipe|recvmsg|sendmsg|goaway|end of tcp", BROKEN_OFF),
    )
)
_NO_CONNECTION = frozenset(
    reason.found for reason in (NOT_LISTENING, NO_SOCKET, LEFT_BEHIND, NO_HOST, NO_WAY, HANGS_UP)
)
# The beginnings of gRPC's own messages; all others come from a peer.
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
    return next((reason for pattern, reason in _IN_GRPCS_WORDS if pattern.search(message)), None)


def never_arrived(error: FedstackError) -> bool:
    """Returns whether an error of a call means that there was no connection, so that nothing has arrived."""
    return bool(error.causes) and all(cause in _NO_CONNECTION for cause in error.causes.values())


def listed(causes: Mapping[str, str]) -> str:
    """Returns lines for the end of a message: each address and its fault."""
    return "".join(f"\n  {address}: {cause}" for address, cause in causes.items())
