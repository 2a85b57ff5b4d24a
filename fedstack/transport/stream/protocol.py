"""The state of a stream connection: its exchanges, what may be sent, and where received bytes belong.

This is a state machine without sockets, tasks and clocks. A driver passes received bytes to `reader` and sends what is
in `queue`.

The receiver never has to keep more than it has promised. Small parcels count against two windows, of their exchange and
of the connection, until they are consumed. The data of large parcels are sent only after they have been granted, that
is, when the receiver has the memory to which they are written.
"""

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias

import attrs

from fedstack.errors import FedstackError
from fedstack.transport.stream import layout
from fedstack.transport.stream.exchange_state import (
    NO_EVENTS,
    ConnectionEvents,
    Exchange,
    ExchangeEvents,
)
from fedstack.transport.stream.frame_reader import FrameReader, FrameSink
from fedstack.transport.stream.layout import Kind, ProtocolError
from fedstack.transport.stream.parcel_sender import ParcelSender
from fedstack.transport.stream.send_queue import OnTaken, SendQueue
from fedstack.transport.stream.windows import CONNECTION_WINDOW_BYTES, Window
from fedstack.transport.wire.parcels import Parcel

# A server reads nothing more from a client that does not read what it is sent.
MOST_WAITING_BYTES = 16 << 20
_MAX_BYE_BYTES = 1000

# Takes the flags, the number, the exchange and the payload of a frame.
_Taker: TypeAlias = Callable[[int, int, int, bytes | memoryview], object]


class StreamProtocol(FrameSink):
    """One end of a connection.

    Args:
      events: What is told about the connection.
      is_server: Whether the peer may start exchanges, instead of this end.

    Attributes:
      reader: Where received bytes go.
      queue: What is to be sent.
      exchanges: The exchanges that have not ended.
      passes_files: Whether files can be sent, and the peer takes them.
    """

    def __init__(self, events: ConnectionEvents, *, is_server: bool) -> None:
        self.reader = FrameReader(self)
        self.queue = SendQueue()
        self.exchanges: dict[int, Exchange] = {}
        self._is_lost = False
        self._events = events
        self._is_server = is_server
        self._is_greeted = False
        self._last = 0  # the highest number of an exchange
        self._window = Window(CONNECTION_WINDOW_BYTES)
        self._sender = ParcelSender(self.queue, self._window)
        self._has_greeted = False
        self._takers: dict[int, _Taker] = {
            Kind.CALL: self._on_call,
            Kind.PARCEL: self._on_parcel,
            Kind.HEARTBEAT: self._on_heartbeat,
            Kind.END: self._on_end,
            Kind.GRANT: self._on_grant,
            Kind.CREDIT: self._on_credit,
            Kind.CANCEL: self._on_cancel,
            Kind.PING: self._on_ping,
            Kind.PONG: lambda flags, number, exchange, payload: self._events.pong(),
            Kind.DRAIN: lambda flags, number, exchange, payload: self._events.draining(),
            Kind.BYE: self._on_bye,
            Kind.SKIP: self._on_skip,
        }

    @property
    def passes_files(self) -> bool:
        return self._sender.passes_files

    @passes_files.setter
    def passes_files(self, passes: bool) -> None:
        self._sender.passes_files = passes

    @property
    def count(self) -> int:
        """The number of exchanges so far."""
        return self._last

    def hand_over(self, events: ConnectionEvents) -> None:
        """Tells somebody else about the connection from now on."""
        self._events = events

    @property
    def is_overfull(self) -> bool:
        """Whether so much waits to be sent that nothing more should be read. A client always reads, so that it ends."""
        return self._is_server and self.queue.frame_bytes > MOST_WAITING_BYTES

    # What this end does.

    def greet(self, content: bytes) -> None:
        """Sends the first frame. A server does that when it has let the client in."""
        self.reader.most_bytes = layout.MOST_FRAME_BYTES
        self._has_greeted = True
        self.queue.add(layout.frame(Kind.HELLO, 0, content))

    def open(
        self, events: ExchangeEvents, path: str, parcel: Parcel, seconds: float | None, taken: OnTaken
    ) -> tuple[Exchange, bool]:
        """Starts an exchange with its request.

        Args:
          events: What is told about the exchange.
          path: The path of the method.
          parcel: The request.
          seconds: The time limit of the call; `None` for no limit.
          taken: See `send`.

        Returns:
          The exchange, and what `send` returns for the request.
        """
        self._last += 1
        exchange = self.exchanges[self._last] = Exchange(self._last, events)
        return exchange, self._sender.send(exchange, parcel, taken, path, seconds)

    def send(self, exchange: Exchange, parcel: Parcel, taken: OnTaken) -> bool:
        """Sends an answer; see `ParcelSender.send`."""
        return self._sender.send(exchange, parcel, taken)

    def heartbeat(self, exchange: Exchange, content: bytes) -> None:
        """Sends a heartbeat to the client."""
        if exchange.is_open:
            self.queue.add(layout.frame(Kind.HEARTBEAT, exchange.number, content))

    def end(self, exchange: Exchange, code: int = 0, message: str = "", details: bytes = b"") -> None:
        """Ends an exchange, as the server. Parcels that wait to be sent are dropped."""
        if exchange.is_open:
            self.queue.add(layout.end_frame(exchange.number, code, message, details))
            self._forget(exchange)
            self._drop(exchange)

    def cancel(self, exchange: Exchange) -> None:
        """Ends an exchange, as the client, if it has not ended. What was received and not consumed is dropped."""
        if exchange.is_open:
            if self._sender.withdraw(exchange):
                self.queue.add(layout.frame(Kind.CANCEL, exchange.number))
            self._forget(exchange)
        self._drop(exchange)

    def receive(self, exchange: Exchange, buffers: Sequence[memoryview]) -> None:
        """Lets the peer send the next bytes of a large parcel, which are written to `buffers`.

        `ExchangeEvents.progressed` is called when bytes have been received, and `stop_receiving` ends it early.
        """
        size = exchange.expect(buffers)
        self.queue.add(layout.count_frame(Kind.GRANT, exchange.number, size))

    def skip(self, exchange: Exchange, size: int) -> None:
        """Lets the peer not send the next bytes of a large parcel. All bytes that `receive` waits for must be here."""
        exchange.left -= size
        self.queue.add(layout.count_frame(Kind.SKIP, exchange.number, size))

    def stop_receiving(self, exchange: Exchange) -> None:
        """Writes nothing more to the memory that `receive` was given. The exchange can only be ended afterwards."""
        exchange.is_read = False
        self.reader.abandon(exchange.number)

    def consumed(self, exchange: Exchange, size: int, *, more: bool) -> None:
        """Records that a small parcel was consumed.

        Args:
          exchange: The exchange.
          size: The number of bytes that were held for it.
          more: Whether the peer may send further parcels in this exchange.
        """
        if not exchange.window.held:  # it was dropped
            return
        self._return(size)
        due = exchange.window.consume(size)
        if due and more and exchange.number in self.exchanges:
            self.queue.add(layout.count_frame(Kind.CREDIT, exchange.number, due))

    def _return(self, size: int) -> None:
        due = self._window.consume(size)
        if due:
            self.queue.add(layout.count_frame(Kind.CREDIT, 0, due))

    def ping(self) -> None:
        """Asks the peer for a sign of life."""
        self.queue.add(layout.frame(Kind.PING))

    def drain(self) -> None:
        """Tells the client that the server accepts no new clients."""
        self.queue.add(layout.frame(Kind.DRAIN))

    def say_bye(self, message: str) -> None:
        """Tells the peer why this end closes the connection. Nothing can be sent afterwards."""
        self.queue.add(layout.frame(Kind.BYE, 0, message.encode()[:_MAX_BYE_BYTES]))

    def lose(self, make_error: Callable[[], FedstackError]) -> None:
        """Ends all exchanges because the connection was lost. Idempotent.

        Args:
          make_error: Returns the error to raise, a new one for each exchange, since their callers change it.
        """
        if self._is_lost:
            return
        self._is_lost = True
        lost, self.exchanges = list(self.exchanges.values()), {}
        self.queue.clear()
        self.reader.drop_files()
        for exchange in lost:
            events = exchange.events
            exchange.end()
            events.lost(make_error())

    def _forget(self, exchange: Exchange) -> None:
        self._sender.forget(exchange)
        self.exchanges.pop(exchange.number, None)
        self.reader.abandon(exchange.number)
        if exchange.outgoing is not None:
            self.queue.drop(exchange.outgoing)
        exchange.end()

    def _drop(self, exchange: Exchange) -> None:
        held, exchange.window.held = exchange.window.held, 0
        if held:
            self._return(held)

    # What the peer sends.

    def frame(self, kind: int, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        if not self._is_greeted:
            if kind == Kind.BYE:  # the peer has refused the connection
                self._on_bye(flags, number, exchange, payload)
                return
            if kind != Kind.HELLO:
                raise ProtocolError(
                    f"Expected a peer that introduces itself, found a frame of kind {kind}; check that the peer speaks "
                    "this protocol"
                )
            self._is_greeted = True
            self._events.hello(bytes(payload))
            return
        taker = self._takers.get(kind)
        if taker is None:
            raise ProtocolError(f"Expected a frame of this protocol, found one of kind {kind}; update one of the peers")
        taker(flags, number, exchange, payload)

    def room(self, exchange: int, size: int) -> memoryview | None:
        found = self.exchanges.get(exchange)
        if found is None:
            self._check_known(exchange)
            return None
        if not found.is_read:
            return None
        room = found.room(size)
        if room is None:
            raise ProtocolError(f"Expected no data for exchange {exchange}, found {size} bytes that were not granted")
        return room

    def progressed(self, exchange: int) -> None:
        found = self.exchanges.get(exchange)
        if found is not None:
            found.events.progressed(done=False)

    def filled(self, exchange: int, size: int) -> None:
        found = self.exchanges.get(exchange)
        if found is not None:
            found.filled(size)

    def _check_known(self, exchange: int) -> None:
        """Checks that an exchange has existed. Frames of one that has ended may still be on their way."""
        if not 0 < exchange <= self._last:
            raise ProtocolError(f"Expected an exchange from 1 to {self._last}, found {exchange}")

    def _found(self, exchange: int, *, from_server: bool) -> Exchange | None:
        if from_server is self._is_server:
            self._wrong_end()
        return self._any(exchange)

    def _any(self, exchange: int) -> Exchange | None:
        """Returns an exchange, or `None` if it has ended."""
        found = self.exchanges.get(exchange)
        if found is None:
            self._check_known(exchange)
        return found

    def _wrong_end(self) -> NoReturn:
        raise ProtocolError(f"Expected no such frame from a {'client' if self._is_server else 'server'}, found one")

    def _hold(self, exchange: Exchange, size: int) -> None:
        exchange.window.hold(size)
        self._window.hold(size)

    def _on_call(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        if not self._is_server:
            self._wrong_end()
        if exchange <= self._last:
            raise ProtocolError(f"Expected a new exchange above {self._last}, found {exchange}")
        announced = layout.read_parcel(flags, number, payload)
        if announced.spans:
            announced = attrs.evolve(announced, file=self.reader.file())
        self._last = exchange
        found = Exchange(exchange, NO_EVENTS)
        found.file = announced.file
        self.exchanges[exchange] = found
        size = layout.HEADER_BYTES + len(payload)
        self._hold(found, size)
        found.left = announced.following
        found.events = self._events.call(found, announced, size)

    def _on_parcel(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        found = self._found(exchange, from_server=True)
        size = layout.HEADER_BYTES + len(payload)
        if found is None or not found.is_read:  # nobody will consume it
            self._window.hold(size)
            self._return(size)
            return
        if not found.is_complete:
            raise ProtocolError(f"Expected data of exchange {exchange}, found its next parcel")
        announced = layout.read_parcel(flags, number, payload)
        if announced.spans:
            raise ProtocolError("Expected files from clients only, found one from a server")
        self._hold(found, size)
        found.left = announced.following
        found.events.parcel(announced, size)

    def _on_heartbeat(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        found = self._found(exchange, from_server=True)
        if found is not None:
            found.events.heartbeat(bytes(payload))

    def _on_end(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        found = self._found(exchange, from_server=True)
        if found is None:
            return
        message, details = layout.read_end(bytes(payload))
        if not (number or found.is_complete):
            raise ProtocolError(f"Expected data of exchange {exchange}, found its end")
        events = found.events
        self._sender.withdraw(found)
        self._forget(found)
        events.ended(number, message, details)

    def _on_grant(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        count = layout.read_count(bytes(payload))
        found = self._any(exchange)
        if found is None:
            return
        data = found.outgoing
        if data is None or count > data.left - data.granted:
            raise ProtocolError(f"Expected at most the bytes of a parcel to be granted, found {count} bytes")
        if count:
            self.queue.grant(data, count)

    def _on_skip(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        count = layout.read_count(bytes(payload))
        found = self._any(exchange)
        if found is None:
            return
        data = found.outgoing
        if data is None or data.file is None or data.granted or count > data.left:
            raise ProtocolError(f"Expected no more bytes to be skipped than are in a file, found {count} bytes")
        data.skip(count)

    def _on_credit(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        count = layout.read_count(bytes(payload))
        if not exchange:
            self._window.credited(count)
            self._sender.send_blocked()
            return
        found = self._any(exchange)
        if found is not None:
            found.window.credited(count)
            self._sender.send_waiting(found)

    def _on_cancel(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        found = self._found(exchange, from_server=False)
        if found is not None:
            events = found.events
            self._sender.withdraw(found)
            self._forget(found)
            self._drop(found)
            events.cancelled()

    def _on_ping(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        if self._has_greeted:
            self.queue.add(layout.frame(Kind.PONG))

    def _on_bye(self, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        self._events.bye(str(payload[:_MAX_BYE_BYTES], "utf-8", "replace"))

    def __repr__(self) -> str:
        return f"<StreamProtocol, {len(self.exchanges)} exchanges, {self.queue!r}>"
