"""Makes small calls over streams on the calling thread, without an event loop.

Passing a call to the transport's loop and its answer back takes two thread switches, which take longer than the rest of
a small call. Each call here has a socket of its own while it lasts. If the answer is neither small nor quick, the
transport's loop takes over the socket.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable

from google.protobuf.message import DecodeError

from fedstack.errors import ClosedError, FedstackError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.proto.streams_pb2 import StreamHello, StreamWelcome
from fedstack.transport.peers.executor_stub import check_protocol
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.stream.exchange_state import ConnectionEvents, Exchange, ExchangeEvents
from fedstack.transport.stream.layout import Announced, ProtocolError
from fedstack.transport.stream.loop_exchange import CallStatus
from fedstack.transport.stream.pipes import SocketPipe
from fedstack.transport.stream.protocol import StreamProtocol
from fedstack.transport.stream.stream import Stream
from fedstack.transport.wire.connection_errors import BROKEN_OFF
from fedstack.transport.wire.heartbeat import held_up, silent, suspended
from fedstack.transport.wire.parcels import Parcel, Piece

_MOST_IDLE = 16
# Shorter than the time after which the server asks whether anybody is there, which nobody would answer.
_IDLE_SECONDS = 20.0
_GREETING_SECONDS = 5.0

ErrorOf = Callable[[CallStatus], Exception]


class BlockingStreams:
    """The sockets of a peer over which threads make calls.

    Args:
      address: The address of the peer, for error messages.
      connect: Returns a new socket that is connected to the peer, and how the client introduces itself. Called on the
        thread of the call.
      error_of: Returns the error for a call that the peer has ended with a status.
    """

    def __init__(
        self, address: str, connect: Callable[[], tuple[socket.socket, StreamHello]], error_of: ErrorOf
    ) -> None:
        self._address = address
        self._connect = connect
        self._error_of = error_of
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Starts without sockets. Also called in a forked child, which must not use those of its parent."""
        self._lock = threading.Lock()
        self._idle: list[tuple[_Line, float]] = []
        self._busy: set[_Line] = set()

    def ask(self, path: str, parcel: Parcel, seconds: float, who: str) -> Parcel | AsyncGenerator[Piece, None]:
        """Makes a call; see `Connection.ask_blocking`.

        Raises:
          OSError: If there is no socket, and none can be connected. The parcel was not sent.
        """
        fork_guard.check()
        line, begun = self._take() or self._new_line(), time.monotonic()
        try:
            answer = line.ask(path, parcel, Deadline(seconds))
        except BaseException as error:
            self._end(line)
            if isinstance(error, TimeoutError):
                late = time.monotonic() - begun - seconds
                raise suspended(late, who) if held_up(late, seconds) else silent(who, seconds) from None
            if self._closed:
                raise self._closed_error() from None
            if isinstance(error, (OSError, ProtocolError)):
                raise BROKEN_OFF.error_at(self._address, str(error)) from None
            raise
        if answer.status is None:
            return self._go_on(line, answer)
        self._give_back(line)
        if answer.status.code:
            error = self._error_of(answer.status)
            raise error from error.__cause__
        return answer.only_parcel()

    def _take(self) -> "_Line | None":
        now = time.monotonic()
        with self._lock:
            if self._closed:
                raise self._closed_error()
            while self._idle:
                line, since = self._idle.pop()
                if now - since < _IDLE_SECONDS and line.is_quiet():
                    self._busy.add(line)
                    return line
                line.close()
        return None

    async def _go_on(self, line: "_Line", answer: "_Answer") -> AsyncGenerator[Piece, None]:
        """Yields the pieces of an answer on the running loop, which takes over the socket."""
        stream = line.as_stream(self._address)
        try:
            exchange = stream.take_over(answer.exchange, answer.arrived, self._error_of)
            while (piece := await exchange.next()) is not None:
                yield piece
        finally:
            stream.close("the call has ended")
            self._end(line)

    def _new_line(self) -> "_Line":
        connection, hello = self._connect()
        line = _Line(connection)
        try:
            line.greet(hello, self._address)
        except BaseException:
            line.close()
            raise
        with self._lock:
            self._busy.add(line)
        return line

    def _give_back(self, line: "_Line") -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MOST_IDLE:
                self._busy.discard(line)
                self._idle.append((line, time.monotonic()))
                return
        self._end(line)

    def _end(self, line: "_Line") -> None:
        with self._lock:
            self._busy.discard(line)
        line.close()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"The connection to {self._address} is closed; create a new client")

    def drop(self) -> None:
        """Closes the idle sockets, because the peer may have been restarted."""
        with self._lock:
            idle, self._idle = self._idle, []
        for line, _ in idle:
            line.close()

    def close(self) -> None:
        """Closes all sockets, which ends running calls. Idempotent."""
        self._closed = True
        self.drop()
        with self._lock:
            busy = list(self._busy)
        for line in busy:
            line.shut()

    def __repr__(self) -> str:
        return f"<BlockingStreams to {self._address}, {len(self._idle)} idle>"


class _Answer(ExchangeEvents):
    """What has been received in answer to a call."""

    exchange: Exchange

    def __init__(self) -> None:
        self.arrived: list[tuple[Announced, int] | bytes] = []
        self.status: CallStatus | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the answer is not a single small parcel."""
        if not self.arrived:
            return False
        first = self.arrived[0]
        return isinstance(first, bytes) or not (first[0].is_whole and first[0].is_last)

    def parcel(self, announced: Announced, size: int) -> None:
        self.arrived.append((announced, size))

    def heartbeat(self, content: bytes) -> None:
        self.arrived.append(content)

    def progressed(self, *, done: bool) -> None: ...

    def ended(self, code: int, message: str, details: bytes) -> None:
        self.status = CallStatus(code, message, details)

    def cancelled(self) -> None: ...

    def lost(self, error: FedstackError) -> None: ...

    def only_parcel(self) -> Parcel:
        """Returns the answer, which is a single small parcel."""
        (announced, _) = self.arrived[0]
        assert isinstance(announced, Announced)
        assert announced.header is not None
        return Parcel(announced.header, () if announced.segments is None else (announced.segments,))


class _Line(ConnectionEvents):
    """A connection for one call at a time.

    Args:
      connection: A connected socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.protocol = StreamProtocol(self, is_server=False)
        self._socket = connection
        self._greeting: bytes | None = None
        self._reason = ""

    def greet(self, hello: StreamHello, address: str) -> None:
        """Introduces the client, and waits until the server has accepted the connection."""
        self.protocol.greet(hello.SerializeToString())
        self._run(lambda: self._greeting is not None, Deadline(_GREETING_SECONDS))
        try:
            welcome = StreamWelcome.FromString(self._greeting or b"")
        except DecodeError as error:
            raise ConnectionError(f"it does not answer as a stream does: {error}") from None
        check_protocol(welcome.protocol, welcome.version, address)

    def is_quiet(self) -> bool:
        """Returns whether the server has sent nothing since the last call, so that it has not closed the connection."""
        return not select.select([self._socket], [], [], 0)[0]

    def ask(self, path: str, parcel: Parcel, deadline: Deadline) -> _Answer:
        """Sends a call, and returns once its only answer or something else is here."""
        answer = _Answer()
        answer.exchange, _ = self.protocol.open(answer, path, parcel, None, lambda: None)
        self._run(lambda: answer.status is not None or answer.goes_on, deadline)
        if answer.status is not None:
            self.protocol.cancel(answer.exchange)  # which releases what it holds
            if not (answer.status.code or len(answer.arrived) == 1):
                raise ProtocolError(f"Expected one answer, found {len(answer.arrived)}")
        return answer

    def _run(self, is_done: Callable[[], bool], deadline: Deadline) -> None:
        """Sends and receives until `is_done` returns true.

        Raises:
          TimeoutError: If that takes too long.
          OSError: If the connection is lost.
        """
        protocol, connection = self.protocol, self._socket
        while True:
            while buffers := protocol.queue.buffers():
                connection.settimeout(_left(deadline))
                protocol.queue.sent(connection.sendmsg(buffers))
            if is_done():
                return
            connection.settimeout(_left(deadline))
            count = connection.recv_into(protocol.reader.buffer())
            if not count:
                raise ConnectionError(self._reason)
            protocol.reader.received(count)

    def as_stream(self, address: str) -> Stream:
        """Returns a stream on the running loop, which continues this connection."""
        self._socket.setblocking(False)
        stream = Stream(address, protocol=self.protocol)
        stream.attach(SocketPipe(self._socket, self.protocol, stream.lost))
        return stream

    # Events.

    def hello(self, content: bytes) -> None:
        self._greeting = content

    def call(self, exchange: Exchange, announced: Announced, size: int) -> ExchangeEvents:
        raise ProtocolError("Expected no calls from a server, found one")

    def bye(self, message: str) -> None:
        self._reason = message

    def shut(self) -> None:
        """Ends the connection, and with it a call that is running on another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self.shut()
        self._socket.close()


def _left(deadline: Deadline) -> float:
    left = deadline.left
    if not left:
        raise TimeoutError
    return left
