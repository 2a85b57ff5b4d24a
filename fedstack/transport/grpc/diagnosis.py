"""Diagnoses why a server cannot be reached, by trying each step of a connection, with and without TLS.

gRPC reports the same error when no server is listening, when only the client or only the server uses TLS, and when a
certificate is missing. The texts of gRPC's errors also differ between releases.
"""

import logging
import os
import socket
import ssl
from pathlib import Path
from typing import TypeAlias

import attrs

from fedstack.errors import FedstackError, ResourceLimitError
from fedstack.foundations.deadline import Deadline
from fedstack.transport.grpc.credential_files import why_not_valid
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.grpc.tls_contexts import client_context
from fedstack.transport.peers.daemon_threads import start_daemon
from fedstack.transport.peers.io_loop import Outcome, result_of
from fedstack.transport.wire import connection_errors as causes
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.connection_errors import ARGUMENTS, Reason, Words

# An HTTP/2 client first sends a preface and a SETTINGS frame, here an empty one. A server responds with a SETTINGS
# frame.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_HEADER_BYTES, _SETTINGS = 9, 4

# Host and port, or the path of a Unix socket.
Address: TypeAlias = tuple[str, int] | str


class SilentError(Exception):
    """Raised if a server accepts a connection and then sends nothing, or if its queue of connections is full."""


def reach(host: str, port: int, seconds: float) -> tuple[str, int]:
    """Connects to a host and port, and returns the address that accepted the connection."""
    with socket.create_connection((host, port), seconds) as connection:
        found = connection.getpeername()
        return found[0], found[1]


def connect(address: Address, seconds: float) -> socket.socket:
    """Connects to a server that is known to listen.

    Args:
      address: The address of the server.
      seconds: The timeout for connecting, and for each later operation on the connection.

    Raises:
      SilentError: If the queue of the server is full because the server does not accept connections.
    """
    try:
        if not isinstance(address, str):
            return socket.create_connection(address, seconds)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(seconds)
            connection.connect(address)
        except BaseException:
            connection.close()
            raise
        return connection
    except (TimeoutError, BlockingIOError) as error:
        raise SilentError from error


def is_http2(address: Address, seconds: float, context: ssl.SSLContext | None, name: str = "") -> bool:
    """Returns whether a server responds to an HTTP/2 greeting as gRPC servers do.

    Args:
      address: The address of the server.
      seconds: The timeout of each step.
      context: The TLS configuration; `None` for plaintext.
      name: The expected name in the server's certificate.

    Raises:
      SilentError: If the server sends nothing.
      OSError: If the TLS handshake that `context` requires fails.
    """
    with connect(address, seconds) as connection:
        if context is None:
            return _is_settings(_answer(connection, seconds))
        try:
            secured = context.wrap_socket(connection, server_hostname=name)
        except TimeoutError as error:
            raise SilentError from error
        with secured:
            return _is_settings(_answer(secured, seconds))


def wants_certificates(address: Address, seconds: float, context: ssl.SSLContext, name: str) -> bool:
    """Returns whether a server closes the connection because the client's certificate is missing or not accepted.

    This check uses TLS 1.2, where the client's certificate is part of the handshake. In TLS 1.3, the client sends its
    certificate last, and gRPC servers close the connection without an alert.
    """
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        is_http2(address, seconds, context, name)
        return False
    except ssl.SSLError as error:
        return "PROTOCOL" not in (error.reason or "") or isinstance(error, ssl.SSLEOFError)
    except ConnectionError:
        return True
    except (OSError, SilentError):
        return False


def _answer(connection: socket.socket, seconds: float) -> bytes:
    """Returns the first bytes that a server sends after the greeting; less than a header of a frame if it hangs up."""
    deadline = Deadline(seconds)
    answer = b""
    try:
        connection.sendall(_GREETING)
        while len(answer) < _FRAME_HEADER_BYTES and not deadline.is_over:
            more = connection.recv(1024)
            if not more:
                break
            answer += more
    except TimeoutError as error:
        if not answer:
            raise SilentError from error
    except OSError:  # the server has closed the connection
        pass
    return answer


def _is_settings(answer: bytes) -> bool:
    return len(answer) >= _FRAME_HEADER_BYTES and answer[3] == _SETTINGS


def talks_tls(address: Address, seconds: float) -> bool:
    """Returns whether a server uses TLS, whatever its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with connect(address, seconds) as connection, context.wrap_socket(connection):
            return True
    except OSError:
        return False


_logger = logging.getLogger(__name__)
# X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL.
_NOT_TODAY = (9, 10)
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")

# The reason and a short text with details; `None` if no problem can be detected from outside.
_Finding: TypeAlias = tuple[Reason, str] | None


@attrs.frozen
class Patience:
    """The time limits of a diagnosis.

    Attributes:
      step_seconds: The time limit for each step.
      told_seconds: The time without an answer that error messages state. A caller that has waited longer than a
        step sets it.
    """

    step_seconds: float = 3.0
    told_seconds: float = 3.0


DEFAULT_PATIENCE = Patience()


async def diagnosis_of(
    target: Target, credentials: ClientCredentials, words: Words, patience: Patience = DEFAULT_PATIENCE
) -> FedstackError | None:
    """Calls `diagnose` on another thread. If the caller is cancelled, the thread continues to run."""
    outcome: Outcome[FedstackError | None] = Outcome()

    def work() -> None:
        found = None
        try:
            found = diagnose(target, credentials, words, patience)
        except Exception:  # the caller already has a failure to report
            _logger.debug("The diagnosis of %s failed", target, exc_info=True)
        outcome.set(found, None)

    try:
        start_daemon(work, name="fedstack-diagnosis")
    except ResourceLimitError:  # the caller already has a failure to report
        _logger.debug("Cannot start a diagnosis of %s", target, exc_info=True)
        return None
    return await result_of(outcome)


def diagnose(
    target: Target,
    credentials: ClientCredentials,
    words: Words = ARGUMENTS,
    patience: Patience = DEFAULT_PATIENCE,
) -> FedstackError | None:
    """Determines why a server cannot be reached. Blocks the thread for at most a few seconds per step.

    Args:
      target: The address of the server.
      credentials: The credentials with which the server was dialed.
      words: The names that error messages use for the parts of the credentials.
      patience: The time limits of the diagnosis.

    Returns:
      An error that describes the problem and its solution, or `None` if no problem is found. The error is not retryable
      if waiting cannot help.
    """
    try:
        if target.address.startswith("unix:"):
            found = _fault_of_socket(target, credentials, patience.step_seconds)
        else:
            found = _fault_of_port(target, credentials, patience.step_seconds)
    except TimeoutError:
        found = causes.NO_ANSWER, f"within {patience.told_seconds:g} s"
    except SilentError:
        found = causes.NO_ANSWER, f"it accepted a connection but sent nothing within {patience.told_seconds:g} s"
    return None if found is None else found[0].error_at(str(target), found[1], words)


def token_refused(target: Target, credentials: ClientCredentials, words: Words) -> FedstackError:
    """Returns the error for a server that refused a call because the call's token is missing or not accepted."""
    reason = causes.WANTS_TOKEN if credentials.token is None else causes.TOKEN_NOT_ACCEPTED
    return reason.error_at(str(target), words=words)


def _fault_of_port(target: Target, credentials: ClientCredentials, seconds: float) -> _Finding:
    if not target.is_local and any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        return None  # gRPC may use the proxy
    host, _, port = target.address.rpartition(":")
    host = host.strip("[]")
    try:
        address = reach(host, int(port), seconds)
    except socket.gaierror as error:
        return causes.NO_HOST, error.strerror or ""
    except ConnectionRefusedError:
        return causes.NOT_LISTENING, ""
    except TimeoutError:
        raise
    except OSError as error:
        return causes.NO_WAY, error.strerror or str(error)
    if credentials.secures(target):
        return _fault_of_tls(host, address, credentials, seconds)
    return _fault_of_plaintext(address, seconds)


def _fault_of_socket(target: Target, credentials: ClientCredentials, seconds: float) -> _Finding:
    path = Path(target.address.removeprefix("unix:"))
    if not hasattr(socket, "AF_UNIX"):
        return causes.NO_WAY, "this system does not support Unix sockets"
    if not path.exists():
        return causes.NO_SOCKET, ""
    if not path.is_socket():
        return causes.NOT_A_SOCKET, "a folder" if path.is_dir() else "a file of another kind"
    try:
        connect(str(path), seconds).close()
    except ConnectionRefusedError:
        return causes.LEFT_BEHIND, ""
    except OSError as error:
        return causes.NO_WAY, error.strerror or str(error)
    return None if credentials.secures(target) else _fault_of_plaintext(str(path), seconds)


def _fault_of_plaintext(address: Address, seconds: float) -> _Finding:
    with connect(address, seconds) as connection:
        answer = _answer(connection, seconds)
    if _is_settings(answer):
        return None
    if talks_tls(address, seconds):
        return causes.TLS, ""
    return (causes.OTHER_LANGUAGE if answer else causes.HANGS_UP), ""


def _fault_of_tls(host: str, address: tuple[str, int], credentials: ClientCredentials, seconds: float) -> _Finding:
    context = client_context(credentials)
    context.set_alpn_protocols(["h2"])
    name = credentials.server_name or host
    try:
        if is_http2(address, seconds, context, name):
            return None
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message.rstrip(".")
        if "mismatch" in why:
            return causes.OTHER_NAME, why
        return (causes.NOT_VALID if error.verify_code in _NOT_TODAY else causes.UNTRUSTED), why
    except OSError:  # the server does not use TLS, or no version of TLS that we support
        return (causes.NO_TLS if is_http2(address, seconds, None) else causes.OTHER_LANGUAGE), ""
    if not wants_certificates(address, seconds, context, name):
        return causes.HANGS_UP, "after the TLS handshake"
    if credentials.certificate is None:
        return causes.WANTS_CERTIFICATE, ""
    why = why_not_valid(credentials.certificate)
    return (causes.CERTIFICATE_REFUSED, "") if why is None else (causes.CERTIFICATE_NOT_VALID, why)
