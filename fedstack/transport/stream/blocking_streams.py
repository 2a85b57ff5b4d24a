"""Makes small calls over streams on the calling thread, without an event loop.

Passing a call to the transport's loop and its answer back takes two thread switches, which take longer than the rest of
a small call. Each call here has a socket of its own while it lasts. If the answer is neither small nor quick, the
transport's loop takes over the socket.
"""

import concurrent.futures
import contextlib
import functools
import socket
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable

from google.protobuf.message import DecodeError

from fedstack.errors import ClosedError, FedstackError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.proto.streams_pb2 import StreamHello, StreamWelcome
from fedstack.transport.peers.executor_stub import check_protocol
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.stream.exchange_state import ConnectionEvents, Exchange, ExchangeEvents
from fedstack.transport.stream.layout import Announced, ProtocolError
from fedstack.transport.stream.loop_exchange import CallStatus
from fedstack.transport.stream.pipes import SocketPipe
from fedstack.transport.stream.protocol import StreamProtocol
from fedstack.transport.stream.stream import Stream, lost_error
from fedstack.transport.wire.heartbeat import held_up, silent, suspended
from fedstack.transport.wire.parcels import Parcel, Piece

_MOST_IDLE = 16
# Shorter than the time after which the server asks whether anybody is there, which nobody would answer.
_IDLE_SECONDS = 20.0
_GREETING_SECONDS = 5.0
_REST_SECONDS = 1.0

ErrorOf = Callable[[CallStatus], Exception]


class BlockingStreams:
    """The sockets of a peer over which threads make calls.

    Args:
      address: The address of the peer, for error messages.
      connect: Returns, within some seconds, a new socket that is connected to the peer, and how the client introduces
        itself. Called on the thread of the call.
      error_of: Returns the error for a call that the peer has ended with a status.
    """

    def __init__(
        self, address: str, connect: Callable[[float], tuple[socket.socket, StreamHello]], error_of: ErrorOf
    ) -> None:
        self._address = address
        self._connect = connect
        self._error_of = error_of
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[tuple[_Line, float]] = []
        self._busy: set[_Line] = set()
        self._rest = Deadline(0.0)  # after no socket could be opened
        renew_after_fork(self)
        weakref.finalize(self, _close_all, self._idle).atexit = False

    def renew(self) -> None:
        """Lets go of the sockets in a forked child, where they are those of its parent."""
        self._lock = threading.Lock()
        for line in (*(line for line, _ in self._idle), *self._busy):
            line.let_go()
        self._idle.clear()
        self._busy.clear()

    def ask(self, path: str, parcel: Parcel, seconds: float, who: str) -> Parcel | AsyncGenerator[Piece, None]:
        """Makes a call; see `Connection.ask_blocking`.

        Raises:
          OSError: If there is no socket, and none can be connected. The parcel was not sent.
        """
        fork_guard.check()
        deadline, begun = Deadline(seconds), time.monotonic()
        line = self._take() or self._new_line(deadline)
        try:
            answer = line.ask(path, parcel, deadline)
        except BaseException as error:
            self._end(line)
            if isinstance(error, TimeoutError):
                late = time.monotonic() - begun - seconds
                raise suspended(late, who) if held_up(late, seconds) else silent(who, seconds) from None
            if self._closed:
                raise self._closed_error() from None
            if isinstance(error, (OSError, ProtocolError)):
                raise lost_error(self._address, str(error)) from None
            raise
        if answer.status is None:
            pieces = self._go_on(line, answer)
            # A generator that is dropped before its first step does not end itself.
            weakref.finalize(pieces, io_loop.call_soon, functools.partial(self._end, line)).atexit = False
            return pieces
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

    def _new_line(self, deadline: Deadline) -> "_Line":
        """Opens a socket. After a failure, this fails at once for a while.

        Raises:
          OSError: If no socket can be opened, or the server does not accept the stream in time.
        """
        if not self._rest.is_over:
            raise ConnectionError("no stream could be opened shortly before")
        try:
            connection, hello = self._connect(min(_GREETING_SECONDS, _left(deadline)))
            line = _Line(connection)
            try:
                line.greet(hello, self._address, Deadline(min(_GREETING_SECONDS, _left(deadline))))
            except BaseException:
                line.close()
                raise
        except (OSError, FedstackError, concurrent.futures.TimeoutError) as error:
            self._rest = Deadline(_REST_SECONDS)
            raise ConnectionError(str(error)) from error
        with self._lock:
            self._busy.add(line)
        if self._closed:
            self._end(line)
            raise self._closed_error()
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
            _close_all(self._idle)

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


def _close_all(idle: "list[tuple[_Line, float]]") -> None:
    while idle:
        idle.pop()[0].close()


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

    def greet(self, hello: StreamHello, address: str, deadline: Deadline) -> None:
        """Introduces the client, and waits until the server has accepted the connection."""
        self.protocol.greet(hello.SerializeToString())
        self._run(lambda: self._greeting is not None, deadline)
        try:
            welcome = StreamWelcome.FromString(self._greeting or b"")
        except DecodeError as error:
            raise ConnectionError(f"it does not answer as a stream does: {error}") from None
        check_protocol(welcome.protocol, welcome.version, address)

    def is_quiet(self) -> bool:
        """Returns whether the server has sent nothing since the last call, so that it has not closed the connection."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            pass
        return False

    def ask(self, path: str, parcel: Parcel, deadline: Deadline) -> _Answer:
        """Sends a call, and returns once its only answer or something else is here."""
        answer = _Answer()
        answer.exchange, _ = self.protocol.open(answer, path, parcel, None, lambda: None)
        self._run(lambda: answer.status is not None or answer.goes_on, deadline)
        if answer.status is not None:
            self.protocol.cancel(answer.exchange)  # which releases what it holds
            answer.arrived = [one for one in answer.arrived if not isinstance(one, bytes)]  # heartbeats are over
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

    def let_go(self) -> None:
        """Closes the socket, but not the connection, which another process has, too."""
        self._socket.close()

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
