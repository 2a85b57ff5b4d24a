"""Defines the reasons why a peer cannot be reached or used, as revealed by gRPC's errors or a diagnosis."""

import re
from collections.abc import Mapping

import attrs

from fedstack.errors import AuthenticationError, FedstackError, WorkerUnavailableError


@attrs.frozen
class Words:
    """The terms for error messages: how users specify each part of the credentials, and how they start the peer."""

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
    authority="--call-ca on the worker (ServerConfig.client_credentials)",
    certificate="--call-cert and --call-key on the worker (ServerConfig.client_credentials)",
    server_name="server_name in ServerConfig.client_credentials on the worker",
    token="--call-token-file on the worker (ServerConfig.client_credentials)",
    no_tls="the options --call-ca and --call-cert on the worker",
)


@attrs.frozen
class Reason:
    """Why a peer cannot be reached or used.

    Attributes:
      found: The problem, as a clause such as "it does not answer".
      advice: The solution. Fields in braces are replaced by the `Words` and the address.
      error: The error class. Its objects are retryable only if waiting can help.
    """

    found: str
    advice: str
    error: type[FedstackError] = WorkerUnavailableError

    def error_at(self, address: str, why: str = "", words: Words = ARGUMENTS) -> FedstackError:
        """Returns the error to raise. Its `causes` contain the reason, for messages that list several workers.

        Args:
          address: The address of the peer.
          why: Details of the problem, in a few words.
          words: The names of the parts of the credentials.
        """
        found = f"{self.found} ({why})" if why else self.found
        advice = self.advice.format(address=address, **attrs.asdict(words))
        error = self.error(f"Cannot use the server at {address}: {found}; {advice}")
        # The advice for unreachable peers is the same for all peers in a list, so the list states it once, at its head.
        error.causes = {address: f"{found}; {advice}" if self.error is AuthenticationError else found}
        return error


NOT_LISTENING = Reason(
    "no server is listening (connection refused)", "start a server with `{serve}`, or correct the address"
)
NO_SOCKET = Reason("the socket does not exist", "start a server with `{serve} --unix-socket`, or correct the path")
NOT_A_SOCKET = Reason("the path is not a socket", "use the path that the server's --unix-socket option names")
LEFT_BEHIND = Reason("no server is listening, and the socket is left over from an earlier server", "restart the server")
NO_HOST = Reason("the host name cannot be resolved", "correct the host name")
NO_WAY = Reason("it cannot be reached from this machine", "correct the address, and check for a firewall in between")
NO_ANSWER = Reason(
    "it does not answer", "check whether it is busy or paused, check for a firewall in between, or correct the address"
)
BROKEN_OFF = Reason("the connection was lost", "check whether the server is still running")
HANGS_UP = Reason(
    "it closes connections immediately",
    "check whether it is running and speaks gRPC, has room for another connection (--max-connections), or requires "
    "{certificate}",
)
OTHER_LANGUAGE = Reason("it does not speak gRPC", "correct the host and port")
NO_TLS = Reason(
    "it does not use TLS, but was dialed with TLS",
    "dial grpc://{address} without {no_tls}, or correct the address",
    AuthenticationError,
)
TLS = Reason(
    "it uses TLS, but was dialed without TLS",
    "pass the certificate of its authority with {authority}",
    AuthenticationError,
)
OTHER_NAME = Reason(
    "its certificate is valid for other names only",
    "dial a name in the certificate, or pass such a name as {server_name}",
    AuthenticationError,
)
UNTRUSTED = Reason(
    "its certificate is not from a trusted authority", "pass the correct {authority}", AuthenticationError
)
NOT_VALID = Reason(
    "its certificate or the certificate of its authority is not valid today",
    "install a new certificate on the server, or correct this machine's clock",
    AuthenticationError,
)
NO_HANDSHAKE = Reason(
    "the TLS handshake failed",
    "check that client and server trust each other's certificates, and that the client's certificate and key are valid",
    AuthenticationError,
)
WANTS_CERTIFICATE = Reason("it requires a client certificate", "pass {certificate}", AuthenticationError)
CERTIFICATE_REFUSED = Reason(
    "it does not accept the client certificate",
    "use {certificate} to pass a certificate from an authority that the server trusts",
    AuthenticationError,
)
CERTIFICATE_NOT_VALID = Reason(
    "it does not accept the client certificate",
    "pass a new certificate with {certificate}, or correct this machine's clock",
    AuthenticationError,
)
WANTS_TOKEN = Reason("it requires a token", "pass {token}", AuthenticationError)
TOKEN_NOT_ACCEPTED = Reason("it does not accept the token", "pass the correct {token}", AuthenticationError)
# The message of the status that our servers send for a call without a valid token.
TOKEN_REFUSED = "the token of this server is not with the call"

# Patterns for the texts of gRPC's errors, and the reasons that they report. The texts differ between releases. The
# first pattern that matches determines the reason.
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
# The beginnings of messages that gRPC itself generates. Messages with other beginnings come from a peer.
_OWN = re.compile(
    r"failed to connect to all addresses|errors resolving|DNS resolution|socket closed|connection reset|recvmsg|"
    r"sendmsg|broken pipe|keepalive|ping timeout|endpoint|transport|stream removed|goaway|trying to connect|end of tcp|"
    r"connection (closed|aborted|refused)|connect(ion)? time|too many pings|(ssl|tls) handshake|custom verification",
    re.IGNORECASE,
)


def reason_of(message: str) -> Reason | None:
    """Returns the reason that a gRPC message reports; `None` for messages from a peer and for unknown messages."""
    if not _OWN.match(message):
        return None
    return next((reason for pattern, reason in _IN_GRPCS_WORDS if pattern.search(message)), None)


def never_arrived(error: FedstackError) -> bool:
    """Returns whether the error of a call means that no connection existed, so the peer has not received the call."""
    return bool(error.causes) and all(cause in _NO_CONNECTION for cause in error.causes.values())


def listed(causes: Mapping[str, str]) -> str:
    """Returns lines to append to an error message: each address with its problem."""
    return "".join(f"\n  {address}: {cause}" for address, cause in causes.items())
