"""Greets servers as gRPC does, and with TLS or without, to see what they are."""

import socket
import ssl
from typing import TypeAlias

from fedstack.foundations.deadline import Deadline

# What a client of HTTP/2 says first: the preface and an empty SETTINGS frame. A server answers with a SETTINGS frame.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_HEADER_BYTES, _SETTINGS = 9, 4

# Host and port, or the path of a Unix socket.
Address: TypeAlias = tuple[str, int] | str


class SilentError(Exception):
    """A server accepts connections, and then says nothing."""


def reach(host: str, port: int, seconds: float) -> tuple[str, int]:
    """Returns the address at which something listens."""
    with socket.create_connection((host, port), seconds) as connection:
        found = connection.getpeername()
        return found[0], found[1]


def connect(address: Address, seconds: float) -> socket.socket:
    """Connects to a server that is known to listen; each step with it may then take so many seconds.

    Raises:
      SilentError: If its queue is full: it takes nobody out.
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
    """Greets a server and tells whether it answers as gRPC's do.

    Raises:
      SilentError: If it says nothing at all.
      OSError: If it does not talk TLS as the context wants it.
    """
    with connect(address, seconds) as connection:
        if context is None:
            return _answers(connection, seconds)
        try:
            secured = context.wrap_socket(connection, server_hostname=name)
        except TimeoutError as error:
            raise SilentError from error
        with secured:
            return _answers(secured, seconds)


def wants_certificates(address: Address, seconds: float, context: ssl.SSLContext, name: str) -> bool:
    """Tells whether it is the certificate that a client shows, or does not, for which a server hangs up.

    The client's comes last in TLS 1.3, and gRPC's servers then hang up without a word. In TLS 1.2 it is in the midst.
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


def _answers(connection: socket.socket, seconds: float) -> bool:
    deadline = Deadline(seconds)
    answer = b""
    try:
        connection.sendall(_GREETING)
        while len(answer) < _FRAME_HEADER_BYTES and not deadline.is_over:
            more = connection.recv(1024)
            if not more:
                return False
            answer += more
    except TimeoutError as error:
        if not answer:
            raise SilentError from error
    except OSError:  # it hung up
        return False
    return len(answer) >= _FRAME_HEADER_BYTES and answer[3] == _SETTINGS


def talks_tls(address: Address, seconds: float) -> bool:
    """Tells whether a server talks TLS, whatever its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with connect(address, seconds) as connection, context.wrap_socket(connection):
            return True
    except OSError:
        return False
