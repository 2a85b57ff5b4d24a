"""Connects to a peer over a stream that is open. Statuses are converted to errors."""

import functools
import weakref
from collections.abc import AsyncGenerator, Callable

from fedstack.errors import FedstackError, InvalidValueError
from fedstack.transport.peers.connection import Connection
from fedstack.transport.stream.loop_exchange import CallStatus, LoopExchange, TimeLimit
from fedstack.transport.stream.stream import Stream
from fedstack.transport.wire.heartbeat import silent
from fedstack.transport.wire.parcels import Parcel, Piece
from fedstack.transport.wire.status import Code


class StreamConnection(Connection):
    """A connection over a stream. Its coroutines run on the loop of the stream.

    Args:
      stream: The stream. The connection closes it.
      error_of: A function that returns the error for a call that the peer has ended with a status.
      loss: A function that returns the error to raise if the peer is known to have ended, otherwise `None`.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        error_of: Callable[[CallStatus], Exception],
        loss: Callable[[], FedstackError | None],
    ) -> None:
        self._stream = stream
        self._error_of = error_of
        self._loss = loss

    @property
    def address(self) -> str:
        """The peer's address."""
        return self._stream.address

    @property
    def passes_files(self) -> bool:
        return self._stream.protocol.passes_files

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return not self._stream.is_lost

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        return await self._only_answer(path, Parcel(request), timeout)

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        return await self._only_answer(path, parcel, timeout)

    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        return self._pieces(path, Parcel(request))

    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        return self._pieces(path, parcel)

    async def ask(self, path: str, parcel: Parcel, timeout: float, who: str) -> Parcel | AsyncGenerator[Piece, None]:
        exchange = self._stream.open(path, parcel, None, self._error_of)
        limit = TimeLimit(exchange, timeout, lambda: silent(who, timeout))
        try:
            piece = await exchange.next()
            if isinstance(piece, Parcel) and piece.is_last:
                await self._end(exchange)
                return piece
        except BaseException:
            exchange.cancel()
            raise
        finally:
            limit.end()
        pieces = self._rest(exchange, piece)
        # A generator that is dropped before its first step does not end itself.
        weakref.finalize(pieces, self.io.call_soon, exchange.cancel).atexit = False
        return pieces

    async def _only_answer(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        """Makes a call whose answer is one message."""
        exchange = self._stream.open(path, parcel, timeout, self._error_of)
        limit = None if timeout is None else TimeLimit(exchange, timeout, self._too_late)
        try:
            answer = await exchange.next()
            if not isinstance(answer, Parcel) or answer.segments:
                raise InvalidValueError(
                    f"Expected one message from {self.address} in answer to {path}, found "
                    f"{'nothing' if answer is None else 'a parcel with arrays'}; check that the address is that of the "
                    "intended server"
                )
            await self._end(exchange)
            return answer.header
        finally:
            exchange.cancel()
            if limit is not None:
                limit.end()

    async def _pieces(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        exchange = self._stream.open(path, parcel, None, self._error_of)
        try:
            while (piece := await exchange.next()) is not None:
                yield piece
        finally:
            exchange.cancel()

    async def _rest(self, exchange: LoopExchange, first: Piece | None) -> AsyncGenerator[Piece, None]:
        """Yields the pieces of an exchange that has begun."""
        piece = first
        try:
            while piece is not None:
                yield piece
                piece = await exchange.next()
        finally:
            exchange.cancel()

    async def _end(self, exchange: LoopExchange) -> None:
        """Waits for the end of a call of which the only answer is here."""
        if await exchange.next() is not None:
            raise InvalidValueError(
                f"Expected one answer from {self.address}, found another; check that the peer uses the same protocol"
            )

    def _too_late(self) -> FedstackError:
        error = self._error_of(CallStatus(int(Code.DEADLINE_EXCEEDED), "Deadline Exceeded", b""))
        assert isinstance(error, FedstackError)
        return error

    async def wait_ready(self, seconds: float) -> None:
        self._stream.check()

    async def check_alive(self, seconds: float) -> bool:
        await self._stream.ask(seconds)
        return True

    async def until_draining(self) -> None:
        await self._stream.is_draining.wait()
        self._stream.check()

    def loss(self) -> FedstackError | None:
        return self._loss()

    @property
    def dropping(self) -> Callable[[], None]:
        """A function that closes the stream, and refers to nothing else of this connection. Called on the loop."""
        return functools.partial(self._stream.close, "the client has dropped the connection")

    async def close(self) -> None:
        self._stream.close("the client has closed the connection")

    def __repr__(self) -> str:
        return f"<StreamConnection to {self.address}{'' if self.is_open else ' closed'}>"
