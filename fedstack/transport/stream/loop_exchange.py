"""An exchange of a stream on an event loop: sends parcels, and returns the pieces that are received."""

import abc
import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from fedstack.errors import FedstackError, InvalidValueError, ResourceLimitError
from fedstack.foundations.deadline import timers_on
from fedstack.transport.stream.exchange_state import Exchange, ExchangeEvents
from fedstack.transport.stream.layout import Announced
from fedstack.transport.stream.protocol import StreamProtocol
from fedstack.transport.wire.bodies import Body
from fedstack.transport.wire.frames import Header, heartbeat_of
from fedstack.transport.wire.heartbeat import held_up
from fedstack.transport.wire.parcels import Parcel, Piece

_Arrival: TypeAlias = "tuple[Announced, int] | bytes"


@attrs.frozen
class CallStatus:
    """How the server has ended an exchange.

    Attributes:
      code: The status code; 0 if the call succeeded.
      message: The message of the status.
      details: The details of the status.
    """

    code: int
    message: str
    details: bytes


class FrameDriver(abc.ABC):
    """What sends the frames of a protocol."""

    protocol: StreamProtocol

    @abc.abstractmethod
    def flush_soon(self) -> None:
        """Sends what is in the queue, in the next iteration of the loop."""

    @abc.abstractmethod
    def flush_sooner(self) -> None:
        """Sends what is in the queue now, unless others are about to send."""


class LoopExchange(ExchangeEvents):
    """One end of an exchange, on an event loop.

    Args:
      driver: What sends the frames.
      most_header_bytes: The maximum size of a received header.
      error_of: Returns the error to raise at the client for a call that the server has ended with a status.

    Attributes:
      exchange: The state of the exchange; set when the exchange begins.
      ending: How the server has ended the exchange; `None` while it is running.
      on_cancelled: Called when the client cancels the exchange.
      bytes_received: The number of bytes received so far.
    """

    exchange: Exchange

    def __init__(
        self, driver: FrameDriver, most_header_bytes: int, error_of: Callable[[CallStatus], Exception] | None = None
    ) -> None:
        self.ending: CallStatus | None = None
        self._error_of = error_of
        self.on_cancelled: Callable[[], object] | None = None
        self.bytes_received = 0
        self._driver = driver
        self._protocol = driver.protocol
        self._most_header_bytes = most_header_bytes
        self._arrived: deque[_Arrival] = deque()
        self._following: Piece | None = None  # the segments of the parcel whose header was returned last
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._sender: asyncio.Future[None] | None = None
        self._is_filled = self._is_taken = False
        self.progress = 0

    # Events.

    def parcel(self, announced: Announced, size: int) -> None:
        self._arrived.append((announced, size))
        self.bytes_received += size
        self._wake()

    def heartbeat(self, content: bytes) -> None:
        if self._arrived and isinstance(self._arrived[-1], bytes):
            self._arrived[-1] = content  # only the latest is of interest
        else:
            self._arrived.append(content)
        self._wake()

    def progressed(self, *, done: bool) -> None:
        self.progress += 1
        if done:
            self._is_filled = True
            self._wake()

    def ended(self, code: int, message: str, details: bytes) -> None:
        self.ending = CallStatus(code, message, details)
        self._wake()

    def cancelled(self) -> None:
        if self.on_cancelled is not None:
            self.on_cancelled()

    def lost(self, error: FedstackError) -> None:
        self.fail(error)
        self.cancelled()

    def fail(self, error: FedstackError) -> None:
        """Makes the reader of the exchange, and a waiting sender, raise an error."""
        self._error = error
        self._wake()
        self._wake_sender()

    def _on_taken(self) -> None:
        self._is_taken = True
        self._wake_sender()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_sender(self) -> None:
        if self._sender is not None and not self._sender.done():
            self._sender.set_result(None)

    async def _arrival(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    async def _departure(self) -> None:
        self._sender = asyncio.get_running_loop().create_future()
        try:
            await self._sender
        finally:
            self._sender = None

    # Receiving.

    async def next(self) -> Piece | None:
        """Returns the next piece, or `None` if the server has ended the exchange without an error.

        Raises:
          FedstackError: If the connection was lost, if the server has ended the exchange with an error, or if the
            header of a parcel is too large.
        """
        if self._following is not None:
            following, self._following = self._following, None
            return following
        while not self._arrived:
            self._check_error()
            if self.ending is not None:
                return None
            await self._arrival()
        arrived = self._arrived.popleft()
        if isinstance(arrived, bytes):
            return heartbeat_of(arrived)
        return await self._piece_of(*arrived)

    def next_at_once(self) -> Parcel | None:
        """Returns the next piece if it is here and a whole parcel, otherwise `None`."""
        first = self._arrived[0] if self._arrived else None
        if not isinstance(first, tuple) or not first[0].is_whole:
            return None
        self._arrived.popleft()
        return self._whole(*first)

    def _whole(self, announced: Announced, size: int) -> Parcel:
        assert announced.header is not None
        self._protocol.consumed(self.exchange, size, more=not announced.is_last)
        segments = () if announced.segments is None else (announced.segments,)
        return Parcel(announced.header, segments, is_last=announced.is_last)

    async def _piece_of(self, announced: Announced, size: int) -> Piece:
        if announced.is_whole:
            return self._whole(announced, size)
        segment_bytes, header = announced.segment_bytes, announced.header
        if header is None:
            header = await self._received_header(announced.header_bytes)
        self._protocol.consumed(self.exchange, size, more=not announced.is_last)
        if not segment_bytes:
            return Parcel(header, is_last=announced.is_last)
        self._following = body = _StreamBody(self, segment_bytes, announced)
        return Header(header, body.mapped if announced.file is not None else None)

    async def _received_header(self, size: int) -> bytes:
        if size > self._most_header_bytes:
            raise ResourceLimitError(
                f"Expected a message of at most {self._most_header_bytes} bytes, found one of {size} bytes; put large "
                "values into arrays, or send less at a time"
            )
        header = np.empty(size, np.uint8)
        await self.receive_into([header.data])
        return header.tobytes()

    def skip(self, size: int) -> None:
        """Skips the next bytes of a large parcel, which are already here."""
        self._check_running()
        self._protocol.skip(self.exchange, size)
        self._driver.flush_soon()
        self.bytes_received += size

    async def receive_into(self, buffers: Sequence[memoryview]) -> None:
        """Receives the next bytes of a large parcel."""
        if not any(map(len, buffers)):
            return
        self._is_filled = False
        self._check_running()
        self._protocol.receive(self.exchange, buffers)
        self._driver.flush_soon()
        try:
            while not self._is_filled:
                self._check_running()
                await self._arrival()
        except BaseException:
            self._protocol.stop_receiving(self.exchange)
            raise
        self.bytes_received += sum(map(len, buffers))

    def _check_running(self) -> None:
        """Raises an error if the exchange has ended, so that nothing more will be received."""
        self._check_error()
        if not self.exchange.is_open:
            raise InvalidValueError("The call has ended before all its data were received; check the server's log")

    def _check_error(self) -> None:
        error = self._error
        if error is None and self.ending is not None and self.ending.code and self._error_of is not None:
            error = self._error_of(self.ending)
        if error is not None:
            try:
                raise error from error.__cause__  # shows the peer's traceback instead of ours
            finally:
                del error

    # Sending.

    def begin(self, path: str, parcel: Parcel, seconds: float | None) -> None:
        """Starts the exchange with its request, as the client. The memory must not change until the call has ended."""
        self.exchange, is_copied = self._protocol.open(self, path, parcel, seconds, parcel.sent)
        if is_copied:
            parcel.sent()

    async def send(self, parcel: Parcel) -> None:
        """Sends an answer, and returns when its memory may change, or when the exchange has ended."""
        exchange = self.exchange
        if not exchange.is_open:
            return
        self._is_taken = False
        if self._protocol.send(exchange, parcel, self._on_taken):
            self._is_taken = True
        self._driver.flush_soon()
        while not self._is_taken:
            if self._error is not None or not exchange.is_open:
                return
            await self._departure()
        parcel.sent()

    def beat(self, content: bytes) -> None:
        """Sends a heartbeat."""
        self._protocol.heartbeat(self.exchange, content)
        self._driver.flush_soon()

    def end(self, code: int = 0, message: str = "", details: bytes = b"") -> None:
        """Ends the exchange, as the server."""
        self._protocol.end(self.exchange, code, message, details)
        self._driver.flush_sooner()

    def cancel(self) -> None:
        """Ends the exchange, as the client. Does nothing if it has ended."""
        self._protocol.cancel(self.exchange)
        self._driver.flush_soon()

    def __repr__(self) -> str:
        return f"<LoopExchange {self.exchange!r}{'' if self.ending is None else ' ended'}>"


class _StreamBody(Body):
    """The segments of a parcel, which are requested from the peer when they are read."""

    def __init__(self, exchange: LoopExchange, size: int, announced: Announced) -> None:
        self.left = self._size = size
        self._exchange = exchange
        self._spans = announced.spans
        self._file = announced.file
        self._mapped: dict[int, int] = {}  # the sizes of the parts that are here, by where they start
        self._limit: tuple[float, Callable[[], FedstackError]] | None = None

    def limit_silence(self, seconds: float, error: Callable[[], FedstackError]) -> None:
        self._limit = seconds, error

    def mapped(self, start: int, size: int) -> memoryview | None:
        """Returns a part of the segments that is in the file that came with the parcel; see `Incoming.mapped`."""
        for first, length, place in self._spans:
            if self._file is not None and (first, length) == (start, size):
                view = self._file.view(place, size)
                if view is not None:
                    self._mapped[start] = size
                return view
        return None

    async def read_into(self, buffers: Sequence[memoryview]) -> None:
        if not self._mapped:
            await self._receive(buffers)
            return
        missing: list[memoryview] = []
        at = self._size - self.left
        for buffer in buffers:
            if self._mapped.get(at) == len(buffer):
                await self._receive(missing)
                self._exchange.skip(len(buffer))
                self.left -= len(buffer)
                missing = []
            else:
                missing.append(buffer)
            at += len(buffer)
        await self._receive(missing)
        if not self.left and self._file is not None:
            self._file.forget()  # what is mapped belongs to the arrays now

    async def _receive(self, buffers: Sequence[memoryview]) -> None:
        self.left -= sum(map(len, buffers))
        if self._limit is None:
            await self._exchange.receive_into(buffers)
            return
        watch = TimeLimit(self._exchange, *self._limit, of_silence=True)
        try:
            await self._exchange.receive_into(buffers)
        finally:
            watch.end()


class TimeLimit:
    """Makes the reader of an exchange raise an error after a time, unless `end` is called before.

    Args:
      exchange: The exchange.
      seconds: The time limit.
      error: Returns the error to raise.
      of_silence: Whether the time starts again whenever data are received.
    """

    def __init__(
        self, exchange: LoopExchange, seconds: float, error: Callable[[], FedstackError], *, of_silence: bool = False
    ) -> None:
        self._exchange = exchange
        self._seconds = max(0.0, seconds)
        self._error = error
        self._of_silence = of_silence
        self._seen = exchange.progress
        self._loop = asyncio.get_running_loop()
        self._wait()

    def _wait(self) -> None:
        self._when = self._loop.time() + self._seconds
        self._timer = timers_on(self._loop).call_at(self._when, self._due)

    def _due(self) -> None:
        seen, self._seen = self._seen, self._exchange.progress
        # If the loop was held up, what was awaited may already be here.
        if held_up(self._loop.time() - self._when, self._seconds) or (self._of_silence and seen != self._seen):
            self._wait()
        else:
            self._exchange.fail(self._error())

    def end(self) -> None:
        """Ends the time limit. Idempotent."""
        self._timer.end()
