"""Sends parcels in the order in which they were given, as far as the windows of their receiver have room."""

from collections import deque
from collections.abc import Sequence

from fedstack.transport.stream import layout
from fedstack.transport.stream.exchange_state import Exchange
from fedstack.transport.stream.layout import Buffer
from fedstack.transport.stream.send_queue import OnTaken, OutgoingData, SendQueue
from fedstack.transport.stream.windows import Window
from fedstack.transport.wire.parcels import Parcel, Span


class ParcelSender:
    """The parcels that one end of a connection sends.

    Args:
      queue: Where frames are added.
      window: The window of the connection.

    Attributes:
      passes_files: Whether files can be sent, and the peer takes them.
    """

    def __init__(self, queue: SendQueue, window: Window) -> None:
        self.passes_files = False
        self._queue = queue
        self._window = window
        self._blocked: dict[int, Exchange] = {}  # with parcels for which the window has no room, in order

    def send(
        self, exchange: Exchange, parcel: Parcel, taken: OnTaken, path: str = "", seconds: float | None = None
    ) -> bool:
        """Sends a parcel.

        Args:
          exchange: The exchange.
          parcel: The parcel.
          taken: Called when the socket has taken the last byte of a parcel that was not copied.
          path: The path of the method, for a request.
          seconds: The time limit of the call, for a request.

        Returns:
          Whether the parcel was copied into the queue, so that its memory may change now.
        """
        size = layout.parcel_bytes(parcel)
        spans: Sequence[Span] = ()
        file = parcel.file if self.passes_files and size > layout.SMALL_PARCEL_BYTES else None
        if file is not None:
            spans = file.spans
        frame, rest, following = layout.parcel_frame(exchange.number, parcel, size, path, seconds, spans)
        cost = sum(map(len, frame))
        data = None
        if following:
            data = OutgoingData(exchange.number, rest, following, taken, None if file is None else file.file)
        is_copied = data is None and len(frame) == 1
        if not (exchange.waiting or self._blocked) and self._fits(exchange, cost):
            self._send(exchange, frame, cost, None if is_copied or data else taken, data)
            return is_copied
        exchange.waiting = deque([*exchange.waiting, (frame, cost, None if data else taken, data)])
        if cost > exchange.window.free:
            return False  # until the peer has consumed earlier parcels of the exchange
        self._blocked[exchange.number] = exchange
        self.send_blocked()
        return False

    def _fits(self, exchange: Exchange, cost: int) -> bool:
        return cost <= self._window.free and cost <= exchange.window.free

    def _send(
        self, exchange: Exchange, frame: list[Buffer], cost: int, taken: OnTaken | None, data: OutgoingData | None
    ) -> None:
        self._window.free -= cost
        exchange.window.free -= cost
        exchange.outgoing = data
        exchange.queued = self._queue.add_parts(frame, cost, taken, None if data is None else data.file), cost

    def send_blocked(self) -> None:
        """Sends parcels that wait for the window, in order. The first for which there is no room holds up the rest."""
        while self._blocked:
            exchange = next(iter(self._blocked.values()))
            while exchange.waiting and self._fits(exchange, exchange.waiting[0][1]):
                self._send(exchange, *exchange.waiting.popleft())
            if exchange.waiting and exchange.waiting[0][1] <= exchange.window.free:
                return
            del self._blocked[exchange.number]

    def send_waiting(self, exchange: Exchange) -> None:
        """Sends what waited for the window of an exchange, as far as the window of the connection has room."""
        if exchange.waiting:
            self._blocked[exchange.number] = exchange
            self.send_blocked()

    def forget(self, exchange: Exchange) -> None:
        """Drops the parcels of an exchange that wait for a window."""
        self._blocked.pop(exchange.number, None)

    def withdraw(self, exchange: Exchange) -> bool:
        """Lets the queue no longer refer to the parcel of an exchange, and returns whether the peer may have got it."""
        if exchange.queued is None:
            return False
        frame, cost = exchange.queued
        if not self._queue.withdraw(frame, cost):
            return True
        self._window.free += cost
        self.send_blocked()
        return False

    def __repr__(self) -> str:
        return f"<ParcelSender, {len(self._blocked)} exchanges wait>"
