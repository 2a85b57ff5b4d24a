"""The state of exchanges, and what is told about them and their connection."""

import abc
from collections import deque
from collections.abc import Sequence

from fedstack.errors import FedstackError
from fedstack.foundations.memory_files import ReceivedFile
from fedstack.transport.stream.layout import Announced, Buffer
from fedstack.transport.stream.send_queue import OnTaken, OutgoingData, QueuedFrame
from fedstack.transport.stream.windows import EXCHANGE_WINDOW_BYTES, Window


class Exchange:
    """The state of a call and its answers at one end of a connection.

    Attributes:
      number: The number of the exchange.
      events: What is told about the exchange.
      is_open: Whether the exchange has not ended.
      is_read: Whether data of large parcels are wanted.
      window: How many bytes of small parcels may be sent, and were received.
      left: The number of bytes of the current incoming parcel that have not been granted.
      file: The file that has come with the request.
    """

    __slots__ = (
        "_buffers",
        "events",
        "file",
        "is_open",
        "is_read",
        "left",
        "number",
        "outgoing",
        "queued",
        "waiting",
        "window",
    )

    def __init__(self, number: int, events: "ExchangeEvents") -> None:
        self.number = number
        self.events = events
        self.is_open = self.is_read = True
        self.left = 0
        self.window = Window(EXCHANGE_WINDOW_BYTES)
        self.outgoing: OutgoingData | None = None
        self.queued: tuple[QueuedFrame, int] | None = None  # the parcel that was sent last, and its size
        # Parcels for which the windows have no room: their first frame, its size, and the data that follow.
        self.waiting: deque[tuple[list[Buffer], int, OnTaken | None, OutgoingData | None]] | tuple[()] = ()
        self._buffers: deque[memoryview] | tuple[()] = ()
        self.file: ReceivedFile | None = None

    def expect(self, buffers: Sequence[memoryview]) -> int:
        """Adds memory for the next bytes of the incoming parcel, and returns its size."""
        size = sum(map(len, buffers))
        assert size <= self.left
        self.left -= size
        self._buffers = deque([*self._buffers, *(buffer for buffer in buffers if len(buffer))])
        return size

    def room(self, size: int) -> memoryview | None:
        """Returns memory for the next bytes, of at most `size` bytes; `None` if no bytes were granted."""
        return self._buffers[0][:size] if self._buffers else None

    def filled(self, size: int) -> None:
        """Records that the next `size` bytes have been received, and tells it if no memory is left to fill."""
        assert self._buffers
        rest = self._buffers.popleft()[size:]
        if len(rest):
            self._buffers.appendleft(rest)
        self.events.progressed(done=not self._buffers)

    @property
    def is_complete(self) -> bool:
        """Whether all bytes of the current incoming parcel were received, or are not wanted."""
        return not (self.is_read and (self.left or self._buffers))

    def end(self) -> None:
        """Drops all that refers to memory of others, or back to this object. Nothing more is told about it."""
        self.is_open = False
        self.outgoing, self.queued, self.waiting, self._buffers = None, None, (), ()
        if self.file is not None:
            self.file.forget()
        self.events = NO_EVENTS

    def __repr__(self) -> str:
        return f"<Exchange {self.number}, {self.window!r}, {self.left} bytes to come>"


class ExchangeEvents(abc.ABC):
    """What happens to an exchange. The methods must not raise."""

    @abc.abstractmethod
    def parcel(self, announced: Announced, size: int) -> None:
        """A parcel, or the frame that announces it, was received. `size` bytes are held until they are consumed."""

    @abc.abstractmethod
    def heartbeat(self, content: bytes) -> None:
        """A heartbeat was received."""

    @abc.abstractmethod
    def progressed(self, *, done: bool) -> None:
        """Some of the granted bytes were received; `done` if all were."""

    @abc.abstractmethod
    def ended(self, code: int, message: str, details: bytes) -> None:
        """The server has ended the exchange."""

    @abc.abstractmethod
    def cancelled(self) -> None:
        """The client has cancelled the exchange."""

    @abc.abstractmethod
    def lost(self, error: FedstackError) -> None:
        """The connection was lost."""


class ConnectionEvents(abc.ABC):
    """What happens to a connection. The methods may raise a `ProtocolError`."""

    @abc.abstractmethod
    def hello(self, content: bytes) -> None:
        """The peer has introduced itself. It is the first frame of each end."""

    @abc.abstractmethod
    def call(self, exchange: Exchange, announced: Announced, size: int) -> ExchangeEvents:
        """A client has started an exchange; see `ExchangeEvents.parcel`."""

    def pong(self) -> None:  # noqa: B027
        """The peer has answered a ping."""

    def draining(self) -> None:  # noqa: B027
        """The server accepts no new clients."""

    def bye(self, message: str) -> None:  # noqa: B027
        """The peer closes the connection, and says why."""


class _NoEvents(ExchangeEvents):
    """Stands for the events of an exchange before its first event, and after its end."""

    def parcel(self, announced: Announced, size: int) -> None: ...

    def heartbeat(self, content: bytes) -> None: ...

    def progressed(self, *, done: bool) -> None: ...

    def ended(self, code: int, message: str, details: bytes) -> None: ...

    def cancelled(self) -> None: ...

    def lost(self, error: FedstackError) -> None: ...


NO_EVENTS = _NoEvents()
