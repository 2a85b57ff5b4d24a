"""The door for calls over streams: accepts connections, checks who they are from, and passes calls to the router."""

import asyncio
import contextlib
import contextvars
import hashlib
import ipaddress
import logging
import os
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import attrs
from google.protobuf.message import DecodeError

from fedstack.errors import AddressError, AuthenticationError, FedstackError, InvalidValueError
from fedstack.foundations.deadline import Deadline, timers_on
from fedstack.foundations.memory_files import HAS_SEALS
from fedstack.proto.streams_pb2 import OpenStreamRequest, OpenStreamResponse, StreamHello, StreamWelcome
from fedstack.service.host.calls.call_router import CallRouter, Refusal
from fedstack.service.host.calls.call_table import host_of
from fedstack.service.host.doors.grpc_call import GrpcCall
from fedstack.service.host.doors.stream_call import StreamCall
from fedstack.service.host.doors.tickets import StreamOwner, Tickets
from fedstack.service.host.limits import ServerLimits, most_connections
from fedstack.transport.grpc.credential_files import Renewed
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.grpc.tls_contexts import server_context
from fedstack.transport.peers.executor_stub import check_protocol, with_protocol
from fedstack.transport.stream.dialing import SOCKET_SUFFIX, tuned
from fedstack.transport.stream.layout import Announced, ProtocolError
from fedstack.transport.stream.loop_exchange import LoopExchange
from fedstack.transport.stream.pipes import SocketPipe, TlsPipe
from fedstack.transport.stream.stream import Stream
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.status import Code

_logger = logging.getLogger(__name__)
_BACKLOG = 1024
# How long a server waits before it accepts streams again, after its descriptors ran out.
_PAUSE_SECONDS = 0.1
_QUIET_SECONDS = 60.0
_LOOPBACK = "loopback"
_UNIX = "unix:"


@attrs.define(eq=False)
class _Client:
    """A client at the other end of a stream."""

    stream: Stream
    peer: str
    owner: StreamOwner


class StreamDoor:
    """Accepts streams beside a gRPC server, and passes their calls to a router.

    Args:
      router: The router, which also runs the calls of gRPC.
      credentials: The certificates for TLS.
      limits: The limits on connections and messages.
    """

    def __init__(self, router: CallRouter, credentials: ServerCredentials, limits: ServerLimits) -> None:
        self._tickets = Tickets()
        self._router = router
        self._limits = limits
        self._certificates: Renewed[ServerCredentials] | None = None
        if credentials.uses_tls:
            self._certificates = credentials.renewed_certificates(lambda note: note())
        self._context: tuple[ServerCredentials, ssl.SSLContext] | None = None
        self._listeners: list[socket.socket] = []
        self._path: Path | None = None
        self._clients: set[_Client] = set()
        self._arriving: dict[asyncio.Task[None], socket.socket] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._quiet_until = 0.0
        self.port = 0

    @property
    def target(self) -> str:
        """Where the server accepts streams: `unix:/path`, or the port after a colon; empty if it accepts none."""
        if self._path is not None:
            return f"unix:{self._path}"
        return f":{self.port}" if self.port else ""

    @property
    def connections(self) -> int:
        """The number of streams that are open."""
        return len(self._clients)

    def listen(self, address: Target, port: int) -> None:
        """Starts to accept streams. Clients use gRPC if this is not possible.

        Args:
          address: Where the server listens for gRPC.
          port: The port for streams; 0 for any free port. For a Unix socket, there is another socket beside it.

        Raises:
          AddressError: If the given port cannot be used.
        """
        if address.socket_path and self._certificates is not None:
            # A stream over a Unix socket would ask for no certificate.
            _logger.info("Accepting no streams, because the server uses TLS over a Unix socket; clients use gRPC")
            return
        try:
            if address.socket_path:
                self._listen_beside(Path(address.socket_path))
            else:
                self._listen_at(address, port)
        except NotImplementedError:
            _logger.info("Accepting no streams, because the event loop cannot wait for sockets; clients use gRPC")
        except OSError as error:
            if port:
                raise AddressError(
                    f"Cannot accept streams on port {port} of {address.host}: {error.strerror}; choose another port"
                ) from error
            _logger.warning("Accepting no streams, so clients use gRPC, which is slower: %s", error)

    def _listen_beside(self, path: Path) -> None:
        beside = path.with_name(path.name + SOCKET_SUFFIX)
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()  # gRPC could listen at its own path, so no server uses this one
        self._listen(socket.AF_UNIX, str(beside))
        self._path = beside
        self._path.chmod(0o600)

    def _listen_at(self, address: Target, port: int) -> None:
        host = None if address.is_everywhere else address.host
        failure: OSError | None = None
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            try:
                self._listen(family, (place[0], self.port or port, *place[2:]))
            except OSError as error:  # a name may also resolve to addresses of other machines
                failure = error
        if failure is not None and not self._listeners:
            raise failure

    async def open_stream(self, request: bytes, call: GrpcCall) -> bytes:
        """Tells a caller over gRPC where the server accepts streams, and issues a ticket."""
        asked = OpenStreamRequest.FromString(request)
        check_protocol(asked.protocol, asked.version, call.peer)
        response = with_protocol(OpenStreamResponse())
        if not self.port:
            response.refusal = "it listens at a Unix socket, or could not listen for streams"
            return response.SerializeToString()
        certificate = call.certificate
        digest = _digest_of(ssl.PEM_cert_to_DER_cert(certificate.decode())) if certificate else b""
        response.port = self.port
        response.ticket = self._tickets.issue(StreamOwner(place_of(call.peer), call.token, digest))
        return response.SerializeToString()

    def _listen(self, family: int, place: Any) -> None:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if family in (socket.AF_INET, socket.AF_INET6):
                if os.name == "posix":
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            if family != getattr(socket, "AF_UNIX", None):
                self.port = listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)
        except BaseException:
            listener.close()
            raise
        self._listeners.append(listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:  # descriptors have run out
            if loop.time() >= self._quiet_until:
                self._quiet_until = loop.time() + _QUIET_SECONDS
                _logger.warning("Cannot accept a stream: %s; raise the limit on open files (ulimit -n)", error)
            loop.remove_reader(listener.fileno())
            timers_on(loop).call_at(loop.time() + _PAUSE_SECONDS, lambda: self._accept_again(listener))
            return
        if len(self._clients) + len(self._arriving) >= most_connections(self._limits):
            connection.close()
            return
        arriving = _in_no_context(loop, self._arrive(tuned(connection), _peer_of(connection, address)))
        self._arriving[arriving] = connection
        arriving.add_done_callback(self._arrived)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _arrived(self, task: "asyncio.Task[None]") -> None:
        connection = self._arriving.pop(task)
        if task.cancelled():  # perhaps before it began
            connection.close()

    async def _arrive(self, connection: socket.socket, peer: str) -> None:
        """Lets a client in, or closes its connection."""
        client: list[_Client] = []
        stream = Stream(
            peer,
            lambda exchange, announced: self._call(_let_in(client), exchange, announced),
            self._limits.max_message_bytes,
            self._limits.idle_seconds,
        )
        try:
            await Deadline(self._limits.handshake_seconds).wait(self._greet(stream, connection, peer, client))
        except BaseException as error:
            _logger.debug("No stream for %s: %s", peer, error)
            stream.close(str(error) if isinstance(error, FedstackError) else "")
            connection.close()
            if not isinstance(error, (asyncio.TimeoutError, OSError, FedstackError)):
                raise
            return
        here = client[0]
        self._clients.add(here)
        stream.ended.add_done_callback(lambda _: self._clients.discard(here))
        if self._is_draining:
            stream.protocol.drain()
        stream.flush_soon()

    async def _greet(self, stream: Stream, connection: socket.socket, peer: str, client: list[_Client]) -> None:
        certificate, takes_files = b"", HAS_SEALS and peer == _UNIX
        if self._certificates is None or peer == _UNIX:
            stream.attach(SocketPipe(connection, stream.protocol, stream.lost, takes_files=takes_files))
        else:
            pipe = TlsPipe(stream.protocol, stream.lost)
            loop = asyncio.get_running_loop()
            # The pipe may have been lost by then: what the client sent after its handshake may have come with it.
            secured, _ = await loop.connect_accepted_socket(lambda: pipe, connection, ssl=self._tls(self._certificates))
            certificate = _certificate_of(secured)
            stream.attach(pipe)
        try:
            hello = StreamHello.FromString(await stream.greeting())
        except DecodeError:
            raise InvalidValueError("Expected a client that introduces itself, found other bytes") from None
        check_protocol(hello.protocol, hello.version, peer)
        owner = self._owner(hello, peer, certificate)
        client.append(_Client(stream, peer, owner))
        welcome = with_protocol(StreamWelcome(takes_files=takes_files))
        stream.protocol.greet(welcome.SerializeToString())

    def _owner(self, hello: StreamHello, peer: str, certificate: bytes) -> StreamOwner:
        """Returns as whom a client acts.

        Raises:
          AuthenticationError: If it has no valid ticket.
        """
        if peer == _UNIX:  # whoever may connect to the socket could connect to gRPC's
            return StreamOwner(peer, hello.token or None)
        owner = self._tickets.use(hello.ticket, place_of(peer), certificate)
        if owner is None:
            raise AuthenticationError(
                "Expected a ticket for a stream, issued to this client within the last seconds and not used before; "
                "open a new stream"
            )
        return owner

    def _tls(self, certificates: Renewed[ServerCredentials]) -> ssl.SSLContext:
        found = certificates.get()
        if self._context is None or self._context[0] is not found:
            self._context = found, server_context(found)
        return self._context[1]

    def _call(self, client: _Client, exchange: LoopExchange, announced: Announced) -> None:
        found = self._router.find(announced.path, client.owner.token)
        if isinstance(found, Refusal):
            self._router.refuse(found, client.peer)
            asyncio.get_running_loop().call_soon(exchange.end, int(found.code), found.message)
            return
        loop = asyncio.get_running_loop()
        caller = self._router.caller(client.peer, client.owner.token)

        async def run() -> None:
            task = cast("Any", asyncio.current_task())
            call = StreamCall(found, task, client.peer, exchange)
            answer = await self._router.run(found, call, caller)
            if answer is not None:
                await call.answer(answer)
            exchange.end()

        task: asyncio.Task[None] = _in_no_context(loop, run(), eagerly=True)
        if task.done():
            return
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)  # not in the task, which may be cancelled before it starts
        exchange.on_cancelled = task.cancel
        if announced.seconds is not None:
            timer = timers_on(loop).call_at(loop.time() + announced.seconds, lambda: _too_late(exchange, task))
            task.add_done_callback(lambda _: timer.end())

    def drain(self) -> None:
        """Tells the clients that the server accepts no new ones."""
        self._is_draining = True
        for client in self._clients:
            client.stream.protocol.drain()
            client.stream.flush_soon()

    async def close(self, seconds: float) -> None:
        """Closes all connections, and accepts no others. Idempotent.

        Args:
          seconds: How long to wait for calls that do not end when they are cancelled.
        """
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners = []
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        for task in list(self._arriving):
            task.cancel()
        for client in list(self._clients):
            client.stream.close("the server has stopped")
        tasks = {*self._arriving, *self._calls}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def __repr__(self) -> str:
        return f"<StreamDoor at {self._path or self.port}, {len(self._clients)} connections>"


def _let_in(client: Sequence[_Client]) -> _Client:
    if not client:
        raise ProtocolError("Expected a client that waits until it is let in, found a call")
    return client[0]


def place_of(peer: str) -> str:
    """Returns the host of a peer as tickets name it: the same for all addresses of the loopback device."""
    host = host_of(peer)
    try:
        address = ipaddress.ip_address(host.partition(":")[2].strip("[]"))
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address  # gRPC names clients of a socket for both in this way
    return _LOOPBACK if address.is_loopback else str(address)


def _too_late(exchange: LoopExchange, task: "asyncio.Task[None]") -> None:
    exchange.end(int(Code.DEADLINE_EXCEEDED), "Deadline Exceeded")
    task.cancel()


def _peer_of(connection: socket.socket, address: Any) -> str:
    """Returns the name of a peer in gRPC's notation."""
    if connection.family == socket.AF_INET:
        return f"ipv4:{address[0]}:{address[1]}"
    if connection.family == socket.AF_INET6:
        return f"ipv6:[{address[0]}]:{address[1]}"
    return _UNIX


def _certificate_of(transport: asyncio.Transport) -> bytes:
    secured = transport.get_extra_info("ssl_object")
    found = secured.getpeercert(binary_form=True) if secured is not None else None
    return _digest_of(found) if found else b""


def _digest_of(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


def _in_no_context(loop: asyncio.AbstractEventLoop, work: Any, *, eagerly: bool = False) -> "asyncio.Task[Any]":
    """Starts a task whose context variables are its own, on Python 3.12 and later at once if `eagerly`."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, context=contextvars.Context(), eager_start=eagerly)
    if sys.version_info >= (3, 11):
        return loop.create_task(work, context=contextvars.Context())
    return contextvars.Context().run(loop.create_task, work)
