"""Finds out why a server cannot be reached, by trying the steps to it one by one.

gRPC says the same thing when nobody listens, when one side talks TLS and the other does not, and when a certificate is
missing; and what it says differs from release to release.
"""

import socket
import ssl
import time
from pathlib import Path

from fedstack.transport.credentials import ClientCredentials
from fedstack.transport.targets import Target

_STEP_SECONDS = 3.0
# What a client of HTTP/2 says first: the preface and an empty SETTINGS frame. A server answers with a SETTINGS frame.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_HEADER_BYTES, _SETTINGS = 9, 4


def diagnose(target: Target, credentials: ClientCredentials) -> str | None:
    """Says what is wrong on the way to a server, and what to do; `None` if nothing is as far as it can tell.

    Blocks for some seconds at most.

    Args:
      target: The server.
      credentials: What it was dialled with.
    """
    if target.address.startswith("unix:"):
        return _diagnose_socket(Path(target.address.removeprefix("unix:")))
    host, _, port = target.address.rpartition(":")
    host = host.strip("[]")
    try:
        address = _reach(host, int(port))
    except socket.gaierror as error:
        return f"Expected a host that can be found from here, found none named {host!r}: {error.strerror}"
    except ConnectionRefusedError:
        return (
            f"Expected a server listening at {target}, found none: connection refused; start one with `fedstack serve` "
            "or correct host and port"
        )
    except TimeoutError:
        return (
            f"Expected an answer from {target}, found none within {_STEP_SECONDS:g} s; check the address, and for a "
            "firewall in between"
        )
    except OSError as error:
        return f"Expected a way to {target}, found none: {error.strerror or error}"
    secure = credentials.uses_tls if target.secure is None else target.secure
    if secure:
        return _diagnose_tls(target, host, address, credentials)
    return _diagnose_plaintext(target, address)


def _diagnose_socket(path: Path) -> str | None:
    if not hasattr(socket, "AF_UNIX"):
        return "Expected a system with Unix sockets, found one without; dial host and port"
    if not path.exists():
        return f"Expected a socket at {path}, found no file; start a server with `fedstack serve --unix-socket {path}`"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_STEP_SECONDS)
            connection.connect(str(path))
    except ConnectionRefusedError:
        return f"Expected a server listening at {path}, found a socket that its server left behind; start it again"
    except OSError as error:
        return f"Expected a way to {path}, found none: {error.strerror or error}"
    return None


def _diagnose_plaintext(target: Target, address: tuple[str, int]) -> str | None:
    if _is_http2(address, None):
        return None
    if _talks_tls(address):
        return (
            f"Expected a server without TLS at {target}, found one with; give the certificate of its authority with "
            "--tls-ca"
        )
    return f"Expected a gRPC server at {target}, found one that talks something else; correct host and port"


def _diagnose_tls(target: Target, host: str, address: tuple[str, int], credentials: ClientCredentials) -> str | None:
    context = ssl.create_default_context()
    if credentials.root_certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=credentials.root_certificates.decode("ascii", "replace"))
    context.set_alpn_protocols(["h2"])
    name = credentials.server_name or host
    try:
        if _is_http2(address, context, name):
            return None
    except ssl.SSLCertVerificationError as error:
        return (
            f"Expected a certificate for {name} from an authority that we trust, found another one at {target}: "
            f"{error.verify_message}; give the right --tls-ca, or the --server-name that the certificate is for"
        )
    except OSError:  # no TLS at all, or none that we know
        if _is_http2(address, None):
            return f"Expected a server with TLS at {target}, found one without; leave the TLS options out"
        return f"Expected TLS at {target}, found something else; correct host and port"
    # The certificates that clients show come after the rest: the server has hung up on one that shows none.
    if credentials.certificate is None:
        return (
            f"Expected a server at {target} that asks for no certificate, found one that does; give --tls-cert and "
            "--tls-key"
        )
    return (
        f"Expected our certificate to be accepted at {target}, found that it is not; give one from an authority that "
        "the server trusts"
    )


def _reach(host: str, port: int) -> tuple[str, int]:
    """Returns the address at which something listens."""
    with socket.create_connection((host, port), _STEP_SECONDS) as connection:
        found = connection.getpeername()
        return found[0], found[1]


def _is_http2(address: tuple[str, int], context: ssl.SSLContext | None, name: str = "") -> bool:
    """Greets a server and tells whether it answers as gRPC's do.

    Raises:
      OSError: If it does not talk TLS as the context wants it.
    """
    with socket.create_connection(address, _STEP_SECONDS) as connection:
        if context is None:
            return _answers(connection)
        with context.wrap_socket(connection, server_hostname=name) as secured:
            return _answers(secured)


def _answers(connection: socket.socket) -> bool:
    deadline = time.monotonic() + _STEP_SECONDS
    answer = b""
    try:
        connection.sendall(_GREETING)
        while len(answer) < _FRAME_HEADER_BYTES and time.monotonic() < deadline:
            more = connection.recv(1024)
            if not more:
                return False
            answer += more
    except OSError:  # it hung up
        return False
    return len(answer) >= _FRAME_HEADER_BYTES and answer[3] == _SETTINGS


def _talks_tls(address: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(address, _STEP_SECONDS) as connection, context.wrap_socket(connection):
            return True
    except OSError:
        return False
