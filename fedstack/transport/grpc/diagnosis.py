"""Finds out why a server cannot be reached, by trying the steps to it one by one.

gRPC says the same thing when nobody listens, when one side talks TLS and the other does not, and when a certificate is
missing; and what it says differs from release to release.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from pathlib import Path

import attrs

from fedstack.errors import AuthenticationError, FedstackError, ResourceLimitError, WorkerUnavailableError
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.grpc.key_pairs import load_pair
from fedstack.transport.grpc.probing import (
    Address,
    SilentError,
    connect,
    is_http2,
    reach,
    talks_tls,
    wants_certificates,
)
from fedstack.transport.grpc.targets import Target
from fedstack.transport.grpc.validity import why_not_valid
from fedstack.transport.peers.daemon_threads import start_daemon

_logger = logging.getLogger(__name__)
_TUNNEL = "dial localhost where a tunnel (ssh -L) leads to it"
# X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL.
_NOT_TODAY = (9, 10)
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@attrs.frozen
class Words:
    """What the parts of the credentials are called where they are given."""

    authority: str
    certificate: str
    server_name: str
    token: str
    no_tls: str
    plaintext_token: str


ARGUMENTS = Words(
    "root_certificates",
    "certificate and private_key",
    "server_name",
    "ClientCredentials(token=...)",
    "leave certificates out",
    f"give root_certificates, or {_TUNNEL}",
)
OPTIONS = Words(
    "--tls-ca",
    "--tls-cert and --tls-key",
    "--server-name",
    "--token-file",
    "leave the TLS options out",
    f"give --tls-ca, or {_TUNNEL}",
)


@attrs.frozen
class Patience:
    """How long to look for what is wrong.

    Attributes:
      step_seconds: How long each step may take.
      told_seconds: How long a server had for an answer, as messages say it: whoever has waited longer says so.
    """

    step_seconds: float = 3.0
    told_seconds: float = 3.0


DEFAULT_PATIENCE = Patience()


async def diagnosis_of(
    target: Target, credentials: ClientCredentials, words: Words, patience: Patience = DEFAULT_PATIENCE
) -> FedstackError | None:
    """Does what `diagnose` does on a thread, which nobody waits for when this is cancelled."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[FedstackError | None] = loop.create_future()

    def finish(found: FedstackError | None) -> None:
        if not waiter.done():
            waiter.set_result(found)

    def work() -> None:
        found = None
        try:
            found = diagnose(target, credentials, words, patience)
        except Exception:  # it is about a failure that there is already
            _logger.debug("Looking for what is wrong at %s failed", target, exc_info=True)
        with contextlib.suppress(RuntimeError):  # the loop may be gone at exit
            loop.call_soon_threadsafe(finish, found)

    try:
        start_daemon(work, name="fedstack-diagnosis")
    except ResourceLimitError:  # it is about a failure that there is already
        _logger.debug("Cannot look for what is wrong at %s", target, exc_info=True)
        return None
    return await waiter


def diagnose(
    target: Target,
    credentials: ClientCredentials,
    words: Words = ARGUMENTS,
    patience: Patience = DEFAULT_PATIENCE,
) -> FedstackError | None:
    """Returns what is wrong on the way to a server, and what to do; `None` if nothing is as far as it can tell.

    Blocks for some seconds at most.

    Args:
      target: The server.
      credentials: What it was dialled with.
      words: What to call parts of the credentials.
      patience: How long to look.

    Returns:
      An error that is not retryable if it does not help to wait.
    """
    try:
        if target.address.startswith("unix:"):
            return _diagnose_socket(target, Path(target.address.removeprefix("unix:")), credentials, words, patience)
        return _diagnose_port(target, credentials, words, patience)
    except SilentError:
        return _away(
            target,
            "it accepts connections and does not answer",
            f"Expected an answer from {target}, found that it accepts connections and does not answer within "
            f"{patience.told_seconds:g} s; see whether it is busy or has been paused, or correct the address",
        )


def _diagnose_port(
    target: Target, credentials: ClientCredentials, words: Words, patience: Patience
) -> FedstackError | None:
    if not target.is_local and any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        return None  # gRPC may go another way
    host, _, port = target.address.rpartition(":")
    host = host.strip("[]")
    try:
        address = reach(host, int(port), patience.step_seconds)
    except socket.gaierror as error:
        return _away(
            target,
            f"there is no host of that name ({error.strerror})",
            f"Expected a host that can be found from here, found none named {host!r}: {error.strerror}",
        )
    except ConnectionRefusedError:
        return _away(
            target,
            "nobody listens there (connection refused)",
            f"Expected a server listening at {target}, found none: connection refused; start one with `fedstack serve` "
            "or correct host and port",
        )
    except TimeoutError:
        return _away(
            target,
            f"no answer within {patience.told_seconds:g} s; look for a firewall in between",
            f"Expected an answer from {target}, found none within {patience.told_seconds:g} s; check the address, "
            "and for a firewall in between",
        )
    except OSError as error:
        why = error.strerror or error
        return _away(target, f"there is no way to it: {why}", f"Expected a way to {target}, found none: {why}")
    if _is_secure(target, credentials):
        return _diagnose_tls(target, host, address, credentials, words, patience.step_seconds)
    return _diagnose_plaintext(target, address, words, patience.step_seconds)


def _is_secure(target: Target, credentials: ClientCredentials) -> bool:
    return credentials.uses_tls if target.secure is None else target.secure


def _away(target: Target, cause: str, text: str) -> FedstackError:
    return _with_cause(target, cause, WorkerUnavailableError(text))


def _refused(target: Target, cause: str, text: str) -> FedstackError:
    return _with_cause(target, cause, AuthenticationError(text))


def _with_cause(target: Target, cause: str, error: FedstackError) -> FedstackError:
    error.causes = {target.address: cause}
    return error


def _diagnose_socket(
    target: Target, path: Path, credentials: ClientCredentials, words: Words, patience: Patience
) -> FedstackError | None:
    if not hasattr(socket, "AF_UNIX"):
        text = "Expected a system with Unix sockets, found one without; dial host and port"
        return _away(target, "this system has no Unix sockets", text)
    if not path.exists():
        return _away(
            target,
            "there is no such socket",
            f"Expected a socket at {path}, found no file; start a server with `fedstack serve --unix-socket {path}`",
        )
    if not path.is_socket():
        kind = "a folder" if path.is_dir() else "a file of another kind"
        return _away(
            target,
            f"there is {kind}, and no socket",
            f"Expected a socket at {path}, found {kind}; give the path that the server was given as --unix-socket",
        )
    try:
        connect(str(path), patience.step_seconds).close()
    except ConnectionRefusedError:
        return _away(
            target,
            "nobody listens there: the socket was left behind",
            f"Expected a server listening at {path}, found a socket that its server left behind; start it again",
        )
    except OSError as error:
        why = error.strerror or error
        return _away(target, f"there is no way to it: {why}", f"Expected a way to {path}, found none: {why}")
    if _is_secure(target, credentials):
        return None
    return _diagnose_plaintext(target, str(path), words, patience.step_seconds)


def _diagnose_plaintext(target: Target, address: Address, words: Words, seconds: float) -> FedstackError | None:
    if is_http2(address, seconds, None):
        return None
    if talks_tls(address, seconds):
        return _refused(
            target,
            f"it talks TLS and was dialled without; give {words.authority}",
            f"Expected a server without TLS at {target}, found one with; give the certificate of its authority with "
            f"{words.authority}",
        )
    return _away(
        target,
        "it talks something else than gRPC",
        f"Expected a gRPC server at {target}, found one that talks something else; correct the address",
    )


def _diagnose_tls(
    target: Target, host: str, address: tuple[str, int], credentials: ClientCredentials, words: Words, seconds: float
) -> FedstackError | None:
    context = ssl.create_default_context()
    if credentials.root_certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=credentials.root_certificates.decode("ascii", "replace"))
    if credentials.certificate is not None and credentials.private_key is not None:
        load_pair(context, credentials.certificate, credentials.private_key)
    context.set_alpn_protocols(["h2"])
    name = credentials.server_name or host
    try:
        if is_http2(address, seconds, context, name):
            return None
    except ssl.SSLCertVerificationError as error:
        return _mistrusted(target, name, error, words)
    except OSError:  # no TLS at all, or none that we know
        if is_http2(address, seconds, None):
            return _refused(
                target,
                "it talks no TLS and was dialled with",
                f"Expected a server with TLS at {target}, found one without; "
                f"{_without_tls(target, credentials, words)}",
            )
        return _away(
            target,
            "it talks something else than TLS",
            f"Expected TLS at {target}, found something else; correct host and port",
        )
    if not wants_certificates(address, seconds, context, name):
        return _away(
            target,
            "it hangs up once there is TLS",
            f"Expected a gRPC server at {target}, found one that hangs up once there is TLS; see whether what is "
            f"behind it runs, and whether it asks for {words.certificate}",
        )
    if credentials.certificate is None:
        return _refused(
            target,
            f"it asks for a certificate of ours; give {words.certificate}",
            f"Expected a server at {target} that asks for no certificate, found one that does; give "
            f"{words.certificate}",
        )
    why = why_not_valid(credentials.certificate)
    if why is not None:
        return _refused(
            target,
            f"it does not accept our certificate: {why}",
            f"Expected our certificate to be accepted at {target}, found that it is not: {why}; give a new one with "
            f"{words.certificate}, or set the clock of this machine",
        )
    return _refused(
        target,
        "it does not accept our certificate",
        f"Expected our certificate to be accepted at {target}, found that it is not; give one from an authority that "
        "the server trusts",
    )


def _without_tls(target: Target, credentials: ClientCredentials, words: Words) -> str:
    """Returns how to dial without TLS what was dialled with: it may be the scheme that asked for it, or the rest."""
    scheme = [] if target.secure is None else [f"dial grpc://{target}"]
    return " and ".join(scheme + [words.no_tls] * credentials.uses_tls)


def _mistrusted(target: Target, name: str, error: ssl.SSLCertVerificationError, words: Words) -> FedstackError:
    why = error.verify_message.rstrip(".")
    if "mismatch" in why:
        return _refused(
            target,
            f"its certificate is not for {name}; give the name that it is for as {words.server_name}",
            f"Expected a certificate for {name} at {target}, found one for other names: {why}; dial a name that it is "
            f"for, or give that as {words.server_name}",
        )
    if error.verify_code in _NOT_TODAY:
        return _refused(
            target,
            f"its certificate, or its authority's, is not valid today ({why}); give it a new one, or set the clock",
            f"Expected a certificate that is valid today at {target}, found that it, or its authority's, is not: "
            f"{why}; give the server a new one, or set the clock of this machine",
        )
    return _refused(
        target,
        f"its certificate is not from an authority that we trust ({why}); give {words.authority}",
        f"Expected a certificate from an authority that we trust at {target}, found another one: {why}; give the "
        f"authority's with {words.authority}",
    )


def token_refused(target: Target, credentials: ClientCredentials, words: Words) -> FedstackError:
    """Returns the error for a server that wants a token, or another one."""
    if credentials.token is None:
        return _refused(
            target,
            f"it asks for a token; give {words.token}",
            f"Expected a server at {target} that asks for no token, found one that does; give it with {words.token}",
        )
    return _refused(
        target,
        "it does not accept our token",
        f"Expected our token to be accepted at {target}, found that it is not; give the server's with {words.token}",
    )
