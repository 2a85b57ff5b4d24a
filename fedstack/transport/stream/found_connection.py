"""Connects to a peer over a stream if the peer offers one that can be reached, and otherwise over gRPC."""

import asyncio
import socket
import weakref
from collections.abc import AsyncGenerator, Callable

from fedstack.errors import FedstackError, RemoteError, WorkerUnavailableError
from fedstack.proto.streams_pb2 import OpenStreamRequest, OpenStreamResponse, StreamHello
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.grpc.diagnosis import token_refused
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.connection import Connection, Transport, check_transport
from fedstack.transport.peers.executor_stub import with_protocol
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.stream.blocking_streams import BlockingStreams
from fedstack.transport.stream.dialing import OPEN_STREAM, SOCKET_SUFFIX, Address, client_security, connect, dial
from fedstack.transport.stream.layout import SMALL_PARCEL_BYTES, parcel_bytes
from fedstack.transport.stream.loop_exchange import CallStatus
from fedstack.transport.stream.stream_connection import StreamConnection
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.connection_errors import ARGUMENTS, TOKEN_REFUSED, Words, never_arrived
from fedstack.transport.wire.parcels import Parcel, Piece
from fedstack.transport.wire.status import Code, error_from_status

# How long a call waits for a stream before it uses gRPC, and how long a server may take to accept a stream.
_PATIENCE_SECONDS = 1.0
_DIAL_SECONDS = 5.0
# How long a connection uses gRPC before it tries to open a stream again: after the first failure, and at most.
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# Differs from every token.
_NO_TOKEN = ""


class FoundConnection(Connection):
    """A connection that finds out how to reach a peer. Its coroutines run on the transport's loop.

    Args:
      target: The address of the peer, for gRPC.
      credentials: The client's credentials; `None` for plaintext.
      transport: `"stream"` or `"grpc"` to use only that, `"auto"` to use gRPC where there is no stream.
      words: The names that error messages use for the parts of the credentials.
      loss: A function that returns the error to raise if the peer is known to have ended, otherwise `None`.

    Raises:
      InvalidValueError: If there is no such transport.

    Attributes:
      why_grpc: Why the connection uses gRPC; empty if it does not, or has not been used.
    """

    def __init__(
        self,
        target: Target,
        credentials: ClientCredentials | None = None,
        *,
        transport: Transport = "auto",
        words: Words = ARGUMENTS,
        loss: Callable[[], FedstackError | None] = lambda: None,
    ) -> None:
        check_transport(transport)
        self._target = target
        self._credentials = credentials or ClientCredentials()
        self._token = self._credentials.renewed_token()
        self._transport = transport
        self._words = words
        self._loss = loss
        self._grpc = GrpcConnection(target, credentials, words=words, loss=loss)
        self._stream: StreamConnection | None = None
        self._stream_token: str | None = None
        self._replaced: list[StreamConnection] = []
        self._dialing: asyncio.Task[None] | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._closed = False
        self._blocking = BlockingStreams(self.address, self._connect, self._error_of)
        self.why_grpc = ""

    @property
    def address(self) -> str:
        """The peer's address."""
        return self._target.address

    @property
    def passes_files(self) -> bool:
        found = self._open()
        return found is not None and found.passes_files

    def _open(self) -> Connection | None:
        """Returns the stream if it is open, and the server knows this client there by its present token."""
        stream = self._stream
        is_good = stream is not None and stream.is_open and self._token.get() == self._stream_token
        return stream if is_good else None

    async def _best(self) -> Connection:
        """Returns the connection for a call, and opens a stream if it is time to try."""
        if self._closed or self._transport == "grpc":
            return self._grpc  # which raises if it is closed
        found = self._open()
        if found is not None:
            return found
        if self._dialing is None or self._dialing.done():
            if io_loop.time() < self._retry_at:
                return self._without_stream()
            self._dialing = asyncio.ensure_future(self._dial())
        await asyncio.wait([self._dialing], timeout=_PATIENCE_SECONDS if self._transport == "auto" else _DIAL_SECONDS)
        return self._open() or self._without_stream()

    def _without_stream(self) -> Connection:
        if self._transport == "stream":
            raise WorkerUnavailableError(
                f"Expected a stream to {self.address}, found none: {self.why_grpc or 'the server does not answer'}; "
                'pass transport="auto" to use gRPC instead'
            )
        return self._grpc

    async def _dial(self) -> None:
        """Opens a stream, or notes why there is none. Never raises."""
        self._blocking.drop()
        token = self._token.get()
        try:
            stream = await self._dialed()
            if self._stream is not None and self._stream.is_open:
                self._replaced.append(self._stream)  # it was opened with another token; what runs over it goes on
            self._replaced = [one for one in self._replaced if one.is_open]
            self._stream, self._stream_token = stream, token
            # The loop refers to the stream, and so keeps it even if nobody closes this connection.
            weakref.finalize(self, io_loop.call_soon, stream.dropping).atexit = False
            self._failures, self.why_grpc = 0, ""
            if self._closed:
                await self._stream.close()
        except FedstackError as error:
            self.why_grpc = str(error)
            # To try a socket of this machine costs nothing.
            longest = _FIRST_PAUSE_SECONDS if self._target.socket_path else _LONGEST_PAUSE_SECONDS
            pause = min(_FIRST_PAUSE_SECONDS * 2**self._failures, longest)
            self._failures += 1
            self._retry_at = io_loop.time() + pause

    async def _dialed(self) -> StreamConnection:
        address, hello = await self._directions()
        security = client_security(self._credentials, self._target.host) if self._is_secure else None
        stream = await dial(address, hello, self.address, _DIAL_SECONDS, security)
        return StreamConnection(stream, error_of=self._error_of, loss=self._loss)

    @property
    def _is_secure(self) -> bool:
        """Whether streams use TLS. Those over a Unix socket do not."""
        return not self._target.socket_path and self._credentials.secures(self._target)

    async def _directions(self) -> tuple[Address, StreamHello]:
        """Returns where the peer accepts a stream, and how to introduce this client."""
        if self._target.socket_path:
            return self._target.socket_path + SOCKET_SUFFIX, with_protocol(StreamHello(token=self._token.get() or ""))
        response = await self._ask_for_ticket()
        return (self._target.host, response.port), with_protocol(StreamHello(ticket=response.ticket))

    def _connect(self, seconds: float) -> tuple[socket.socket, StreamHello]:
        """Returns a socket for blocking calls; see `BlockingStreams`."""
        address, hello = io_loop.run_sync(self._directions(), seconds)
        return connect(address, seconds), hello

    def _error_of(self, status: CallStatus) -> Exception:
        """Returns the error for a call that the peer has ended with a status."""
        if status.code == Code.UNAUTHENTICATED and status.message == TOKEN_REFUSED:
            self._stream_token = _NO_TOKEN  # the next call opens a stream
            return token_refused(self._target, self._credentials, self._words)
        return error_from_status(status.code, status.message, status.details or None, self.address, self._words)

    async def _ask_for_ticket(self) -> OpenStreamResponse:
        request = with_protocol(OpenStreamRequest()).SerializeToString()
        try:
            response = OpenStreamResponse.FromString(await self._grpc.unary(OPEN_STREAM, request, _DIAL_SECONDS))
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            raise WorkerUnavailableError(f"The server at {self.address} has no streams") from None
        if response.refusal:
            raise WorkerUnavailableError(f"The server at {self.address} accepts no streams: {response.refusal}")
        return response

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        return await (self._open() or await self._best()).unary(path, request, timeout)

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        return await (self._open() or await self._best()).upload(path, parcel, timeout)

    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        found = self._open()
        return found.download(path, request) if found else self._later(lambda best: best.download(path, request))

    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        found = self._open()
        return found.exchange(path, parcel) if found else self._later(lambda best: best.exchange(path, parcel))

    async def _later(self, start: Callable[[Connection], AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
        pieces = start(await self._best())
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    async def ask(self, path: str, parcel: Parcel, timeout: float, who: str) -> Parcel | AsyncGenerator[Piece, None]:
        return await (self._open() or await self._best()).ask(path, parcel, timeout, who)

    def ask_blocking(
        self, path: str, parcel: Parcel, timeout: float, who: str
    ) -> Parcel | AsyncGenerator[Piece, None] | None:
        if self._open() is None:
            # The first call, on the loop, finds out how to reach the peer.
            return self._grpc.ask_blocking(path, parcel, timeout, who) if self._uses_grpc else None
        if self._is_secure or parcel_bytes(parcel) > SMALL_PARCEL_BYTES:
            return None
        try:
            return self._blocking.ask(path, parcel, timeout, who)
        except (OSError, WorkerUnavailableError) as error:
            if isinstance(error, WorkerUnavailableError) and not never_arrived(error):
                raise
            return None

    @property
    def _uses_grpc(self) -> bool:
        return self._transport == "grpc" or bool(self.why_grpc)

    async def wait_ready(self, seconds: float) -> None:
        if isinstance(await self._best(), GrpcConnection):
            await self._grpc.wait_ready(seconds)

    async def look(self, seconds: float) -> bool:
        found = self._open()
        if found is not None:
            try:
                return await found.check_alive(seconds)
            except FedstackError:
                pass
        self._retry_at = 0.0
        return await self._grpc.look(seconds)

    async def check_alive(self, seconds: float) -> bool:
        return await (self._open() or self._grpc).check_alive(seconds)

    async def until_draining(self) -> None:
        await (await self._best()).until_draining()

    def loss(self) -> FedstackError | None:
        return self._loss()

    async def close(self) -> None:
        self._closed = True
        if self._dialing is not None:
            self._dialing.cancel()
            await asyncio.gather(self._dialing, return_exceptions=True)
        for stream in (self._stream, *self._replaced):
            if stream is not None:
                await stream.close()
        self._blocking.close()
        await self._grpc.close()

    def __repr__(self) -> str:
        how = "stream" if self._open() else "gRPC"
        return f"<FoundConnection to {self.address} over {how}{' closed' if self._closed else ''}>"
