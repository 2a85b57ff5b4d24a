"""Two ends of a connection without a socket: what one sends, the other receives, in pieces of any size."""

from collections.abc import Callable, Iterable

from fedstack.errors import FedstackError
from fedstack.transport.stream.exchange_state import ConnectionEvents, Exchange, ExchangeEvents
from fedstack.transport.stream.layout import Announced
from fedstack.transport.stream.protocol import StreamProtocol


class Recorded(ExchangeEvents):
    """Records the events of an exchange."""

    def __init__(self) -> None:
        self.parcels: list[tuple[Announced, int]] = []
        self.heartbeats: list[bytes] = []
        self.endings: list[tuple[int, str, bytes]] = []
        self.is_cancelled = False
        self.filled = 0
        self.error: FedstackError | None = None

    def parcel(self, announced: Announced, size: int) -> None:
        self.parcels.append((announced, size))

    def heartbeat(self, content: bytes) -> None:
        self.heartbeats.append(content)

    def progressed(self, *, done: bool) -> None:
        self.filled += done

    def ended(self, code: int, message: str, details: bytes) -> None:
        self.endings.append((code, message, details))

    def cancelled(self) -> None:
        self.is_cancelled = True

    def lost(self, error: FedstackError) -> None:
        self.error = error


class End(ConnectionEvents):
    """One end, with what it was told."""

    def __init__(self, *, is_server: bool) -> None:
        self.protocol = StreamProtocol(self, is_server=is_server)
        self.greeting = b""
        self.calls: list[tuple[Exchange, Recorded]] = []
        self.pongs = 0
        self.is_draining = False
        self.goodbye = ""

    def hello(self, content: bytes) -> None:
        self.greeting = content

    def call(self, exchange: Exchange, announced: Announced, size: int) -> ExchangeEvents:
        events = Recorded()
        events.parcel(announced, size)
        self.calls.append((exchange, events))
        return events

    def pong(self) -> None:
        self.pongs += 1

    def draining(self) -> None:
        self.is_draining = True

    def bye(self, message: str) -> None:
        self.goodbye = message

    def outgoing(self) -> bytes:
        """Takes all that this end wants to send."""
        sent = b""
        while buffers := self.protocol.queue.buffers():
            sent += b"".join(buffers)
            self.protocol.queue.sent(sum(map(len, buffers)))
        return sent

    def incoming(self, content: bytes, sizes: Iterable[int] = ()) -> None:
        """Receives bytes, in pieces of the given sizes as long as there are any."""
        cuts, reader = iter(sizes), self.protocol.reader
        while content:
            buffer = reader.buffer()
            count = min(len(buffer), len(content), next(cuts, len(content)))
            buffer[:count] = content[:count]
            reader.received(count)
            content = content[count:]


def connected() -> tuple[End, End]:
    """Returns a client and a server that have greeted each other."""
    client, server = End(is_server=False), End(is_server=True)
    client.protocol.greet(b"a client")
    server.protocol.greet(b"a server")
    pump(client, server)
    return client, server


def pump(one: End, other: End, sizes: Callable[[], Iterable[int]] = lambda: ()) -> None:
    """Passes bytes between two ends until neither has any to send."""
    while True:
        sent, answered = one.outgoing(), other.outgoing()
        if not sent and not answered:
            return
        other.incoming(sent, sizes())
        one.incoming(answered, sizes())
