"""Opens streams to servers, over TCP, TLS or a Unix socket."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from typing import TypeAlias

import attrs
from google.protobuf.message import DecodeError

from fedstack.errors import FedstackError, WorkerUnavailableError
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.memory_files import HAS_SEALS
from fedstack.proto.streams_pb2 import StreamHello, StreamWelcome
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.grpc.tls_contexts import client_context
from fedstack.transport.peers.daemon_threads import start_daemon
from fedstack.transport.peers.executor_stub import check_protocol
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.peers.io_loop import Outcome, result_of
from fedstack.transport.stream.pipes import SocketPipe, TlsPipe
from fedstack.transport.stream.stream import Stream

# The method with which a client asks over gRPC where the server accepts streams.
OPEN_STREAM = "/fedstack.v1.Streams/Open"
# A server that listens for gRPC at a path listens for streams at this path with the suffix.
SOCKET_SUFFIX = "-s"
# Shorter than the limit of servers, since a call that starts while the server closes the connection may be lost.
_IDLE_SECONDS = 240.0
# The system limits this to what it allows; the more fits, the fewer times the loop is woken.
_UNIX_BUFFER_BYTES = 4 << 20

# Host and port, or the path of a Unix socket.
Address: TypeAlias = "tuple[str, int] | str"


@attrs.frozen
class Security:
    """How TLS is used.

    Attributes:
      context: The configuration.
      server_name: The expected name in the certificate of the server.
    """

    context: ssl.SSLContext
    server_name: str


def client_security(credentials: ClientCredentials, host: str) -> Security:
    """Returns how to dial a server with TLS."""
    return Security(client_context(credentials), credentials.server_name or host)


def tuned(connection: socket.socket) -> socket.socket:
    """Sets the options of a connected socket at either end, and returns it."""
    connection.setblocking(False)
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, option, _UNIX_BUFFER_BYTES)
    return connection


async def dial(
    address: Address, hello: StreamHello, name: str, seconds: float, security: Security | None = None
) -> Stream:
    """Opens a stream, and returns it when the server has accepted it.

    Args:
      address: Where the server accepts streams.
      hello: How the client introduces itself.
      name: The address of the server in error messages.
      seconds: The time limit of each step: to connect, and to be accepted.
      security: How to use TLS; `None` for plaintext.

    Raises:
      WorkerUnavailableError: If the server cannot be reached, or does not accept the stream.
      ProtocolVersionError: If the server uses another version of the protocol.
    """
    fork_guard.begin()
    stream = Stream(name, idle_seconds=_IDLE_SECONDS)
    try:
        connection = await Deadline(seconds).wait(_connected(address))
        await Deadline(seconds).wait(_greeted(stream, connection, hello, security))
    except BaseException as error:
        stream.close()
        if isinstance(error, asyncio.TimeoutError):
            raise _unavailable(name, address, f"no answer within {seconds:g} s") from None
        if isinstance(error, (OSError, ssl.SSLError)) and not isinstance(error, FedstackError):
            raise _unavailable(name, address, getattr(error, "strerror", None) or str(error)) from error
        raise
    return stream


async def _greeted(stream: Stream, connection: socket.socket, hello: StreamHello, security: Security | None) -> None:
    loop = asyncio.get_running_loop()
    try:
        if security is None:
            stream.attach(SocketPipe(connection, stream.protocol, stream.lost))
        else:
            pipe = TlsPipe(stream.protocol, stream.lost)
            await loop.create_connection(
                lambda: pipe, sock=connection, ssl=security.context, server_hostname=security.server_name
            )
            stream.attach(pipe)
    except BaseException:
        connection.close()
        raise
    stream.protocol.greet(hello.SerializeToString())
    stream.flush_soon()
    content = await stream.greeting()
    try:
        welcome = StreamWelcome.FromString(content)
    except DecodeError:
        raise WorkerUnavailableError(
            f"The server at {stream.address} does not answer as a stream does; check that it is a server of fedstack"
        ) from None
    check_protocol(welcome.protocol, welcome.version, stream.address)
    if welcome.takes_files and HAS_SEALS and connection.family == socket.AF_UNIX:
        stream.protocol.passes_files = True


def connect(address: Address, seconds: float) -> socket.socket:
    """Returns a socket that is connected to a server, and blocks the thread meanwhile.

    Raises:
      OSError: If no connection can be made.
    """
    if not isinstance(address, str):
        return tuned(socket.create_connection(address, seconds))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return tuned(connection)


async def _connected(address: Address) -> socket.socket:
    """Returns a connected socket.

    Raises:
      OSError: If no connection can be made.
    """
    if isinstance(address, str):
        return await _connect(socket.AF_UNIX, address)
    failure: OSError | None = None
    for family, place in await _resolved(*address):
        try:
            return await _connect(family, place)
        except OSError as error:
            failure = error
    assert failure is not None
    raise failure


async def _connect(family: int, address: object) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        tuned(connection)
        await asyncio.get_running_loop().sock_connect(connection, address)  # type: ignore[arg-type]
    except BaseException:
        connection.close()
        raise
    return connection


_Places: TypeAlias = "list[tuple[int, object]]"


async def _resolved(host: str, port: int) -> _Places:
    """Returns the addresses of a host. Names are looked up on another thread, which may outlive the caller."""

    def find() -> _Places:
        return [(info[0], info[4]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    if host.lower() == "localhost" or _is_number(host):
        return find()
    found: Outcome[_Places] = Outcome()

    def work() -> None:
        try:
            found.set(find(), None)
        except OSError as error:
            found.set(None, error)

    start_daemon(work, name="fedstack-resolver")
    return await result_of(found)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _unavailable(name: str, address: Address, why: str) -> WorkerUnavailableError:
    place = address if isinstance(address, str) else f"port {address[1]}"
    return WorkerUnavailableError(f"The server at {name} accepts no stream at {place}: {why}; check for a firewall")
