"""A stream connection on an event loop, at either end: its protocol, its pipe, and how it ends."""

import asyncio
import contextvars
import math
from collections.abc import Callable, Sequence

from fedstack.errors import ClosedError, DeadlineExceededError, FedstackError
from fedstack.foundations.deadline import LoopTimer, timers_on
from fedstack.transport.stream.exchange_state import ConnectionEvents, Exchange, ExchangeEvents
from fedstack.transport.stream.layout import Announced, ProtocolError
from fedstack.transport.stream.loop_exchange import CallStatus, FrameDriver, LoopExchange
from fedstack.transport.stream.pipes import Pipe
from fedstack.transport.stream.protocol import StreamProtocol
from fedstack.transport.wire.connection_errors import BROKEN_OFF, NO_ANSWER
from fedstack.transport.wire.heartbeat import held_up
from fedstack.transport.wire.parcels import Parcel

# The same as for gRPC: a silent peer is asked, and given up if it does not answer.
ASK_SECONDS = 30.0
ANSWER_SECONDS = 20.0
_MOST_MESSAGE_BYTES = 1 << 31

# Starts the work of a call that a client has made.
OnCall = Callable[[LoopExchange, Announced], None]


class Stream(ConnectionEvents, FrameDriver):
    """A connection to a peer. Its methods are called on the loop on which it was created.

    Args:
      address: The address of the peer, for error messages.
      on_call: Called for each call of the peer, as the server; `None` as the client.
      most_header_bytes: The maximum size of the header of a parcel.
      idle_seconds: How long the connection may be without a call before this end closes it.
      protocol: The state of a connection that is open; by default a new one.

    Attributes:
      protocol: The state of the connection.
      is_draining: Set when the server accepts no new clients, or when the connection is lost.
      is_lost: Whether the connection was lost or closed.
    """

    def __init__(
        self,
        address: str,
        on_call: OnCall | None = None,
        most_header_bytes: int = _MOST_MESSAGE_BYTES,
        idle_seconds: float = math.inf,
        protocol: StreamProtocol | None = None,
    ) -> None:
        self.address = address
        self.protocol = protocol or StreamProtocol(self, is_server=on_call is not None)
        self.protocol.hand_over(self)
        self.is_draining = asyncio.Event()
        self.is_lost = False
        self._make_error: Callable[[], FedstackError] | None = None
        self._on_call = on_call
        self._most_header_bytes = most_header_bytes
        self._idle_seconds = idle_seconds
        self._idle_since: float | None = None
        self._count = 0  # of exchanges at the last look
        self._loop = asyncio.get_running_loop()
        self._pipe: Pipe | None = None
        self._greeting: asyncio.Future[bytes] = self._loop.create_future()
        self._pongs: list[asyncio.Future[None]] = []
        self._is_flushing = False
        self._context = contextvars.Context()  # of its own: a context can be entered on one thread at a time
        self._asked: float | None = None
        self._reason = ""
        self._timer: LoopTimer | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def attach(self, pipe: Pipe) -> None:
        """Connects the protocol to a pipe."""
        self._pipe = pipe
        self._watch()

    async def greeting(self) -> bytes:
        """Waits for the first frame of the peer, and returns its content.

        Raises:
          WorkerUnavailableError: If the connection is lost.
        """
        return await asyncio.shield(self._greeting)

    def open(
        self, path: str, parcel: Parcel, seconds: float | None, error_of: Callable[[CallStatus], Exception]
    ) -> LoopExchange:
        """Starts a call.

        Args:
          path: The path of the method.
          parcel: The request.
          seconds: The time limit of the call in seconds; `None` for no limit.
          error_of: Returns the error to raise for a call that the server has ended with a status.
        """
        self.check()
        exchange = LoopExchange(self, self._most_header_bytes, error_of)
        exchange.begin(path, parcel, seconds)
        self.flush_sooner()
        return exchange

    def take_over(
        self,
        exchange: Exchange,
        arrived: Sequence[tuple[Announced, int] | bytes],
        error_of: Callable[[CallStatus], Exception],
    ) -> LoopExchange:
        """Continues an exchange that was begun elsewhere; see `open`.

        Args:
          exchange: The exchange.
          arrived: The parcels and heartbeats that have arrived.
          error_of: See `open`.
        """
        found = LoopExchange(self, self._most_header_bytes, error_of)
        found.exchange = exchange
        for one in arrived:
            if isinstance(one, bytes):
                found.heartbeat(one)
            else:
                found.parcel(*one)
        exchange.events = found
        return found

    def check(self) -> None:
        """Raises an error if the connection was lost."""
        if self._make_error is not None:
            raise self._make_error()

    def flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush, context=self._context)

    def flush_sooner(self) -> None:
        """Sends now if nobody else is likely to send, so that waiting would save nothing."""
        if len(self.protocol.exchanges) > 1:
            self.flush_soon()
        elif self._pipe is not None:
            self._pipe.flush()

    def _flush(self) -> None:
        self._is_flushing = False
        if self._pipe is not None:
            self._pipe.flush()

    async def ask(self, seconds: float) -> None:
        """Waits until the peer answers.

        Raises:
          DeadlineExceededError: If the peer does not answer in time.
          WorkerUnavailableError: If the connection is lost.
        """
        self.check()
        answer: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(answer)
        self.protocol.ping()
        self.flush_soon()
        done, _ = await asyncio.wait([answer], timeout=seconds)
        if not done:
            answer.cancel()
            raise DeadlineExceededError(
                f"The server at {self.address} did not answer within {seconds:g} seconds; check whether it has stalled"
            )
        self.check()

    def close(self, reason: str = "") -> None:
        """Closes the connection. Idempotent.

        Args:
          reason: What the peer is told; empty to tell it nothing.
        """
        if not self.is_lost:
            if reason:
                self.protocol.say_bye(reason)
                self._flush()
            during_calls = (
                f"The connection to {self.address} was closed during a call; close contexts and stubs only after their "
                "calls have ended"
            )
            later = f"The connection to {self.address} is closed; create a new context, client or coordinator"
            self._lose(lambda: ClosedError(later), lambda: ClosedError(during_calls))
        self._pipe_ends()

    def lost(self, error: BaseException | None) -> None:
        """Ends all exchanges because the connection was lost. Called by the pipe.

        Args:
          error: Why it was lost; `None` if the peer has closed it.
        """
        if self.is_lost:
            return
        if isinstance(error, ProtocolError):
            self.protocol.say_bye(str(error))
            self._flush()
        why = self._reason or ("" if error is None else str(error))
        self._lose(lambda: lost_error(self.address, why, is_silent=isinstance(error, TimeoutError)))

    def _lose(
        self, make_error: Callable[[], FedstackError], during_calls: Callable[[], FedstackError] | None = None
    ) -> None:
        self.is_lost, self._make_error = True, make_error
        if self._timer is not None:
            self._timer.end()
        self.protocol.lose(during_calls or make_error)
        if not self._greeting.done():
            self._greeting.set_exception(make_error())
            self._greeting.exception()  # nothing may wait for it
        for pong in self._pongs:
            if not pong.done():
                pong.set_result(None)
        self._pongs.clear()
        self.is_draining.set()
        if not self.ended.done():
            self.ended.set_result(None)

    def _pipe_ends(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()

    def _watch(self) -> None:
        """Checks regularly that the peer has said something, and that the connection is used."""
        self._when = self._loop.time() + min(ASK_SECONDS, self._idle_seconds / 4)
        self._timer = timers_on(self._loop).call_at(self._when, self._due)

    def _due(self) -> None:
        pipe, now = self._pipe, self._loop.time()
        if pipe is None or self.is_lost:
            return
        if self._is_idle(now):
            self.close(f"it was not used for {self._idle_seconds:g} s")
            return
        if self._asked is not None and pipe.heard < self._asked:
            if not held_up(now - self._when, ANSWER_SECONDS):
                self.lost(TimeoutError(f"it has been silent for {now - pipe.heard:.0f} s"))
                self._pipe_ends()
                return
        elif now - pipe.heard < ASK_SECONDS / 2:
            self._asked = None
            self._watch()
            return
        self._asked = now
        self.protocol.ping()
        self._flush()
        self._when = now + ANSWER_SECONDS
        self._timer = timers_on(self._loop).call_at(self._when, self._due)

    def _is_idle(self, now: float) -> bool:
        if self.protocol.exchanges or self.protocol.count != self._count:
            self._idle_since, self._count = None, self.protocol.count
            return False
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= self._idle_seconds

    # Events.

    def hello(self, content: bytes) -> None:
        if not self._greeting.done():
            self._greeting.set_result(content)

    def call(self, exchange: Exchange, announced: Announced, size: int) -> ExchangeEvents:
        assert self._on_call is not None
        events = LoopExchange(self, self._most_header_bytes)
        events.exchange = exchange
        events.parcel(announced, size)
        self._on_call(events, announced)
        return events

    def pong(self) -> None:
        pongs, self._pongs = self._pongs, []
        for pong in pongs:
            if not pong.done():
                pong.set_result(None)

    def draining(self) -> None:
        self.is_draining.set()

    def bye(self, message: str) -> None:
        self._reason = message

    def __repr__(self) -> str:
        return f"<Stream to {self.address}, {len(self.protocol.exchanges)} exchanges{' lost' if self.is_lost else ''}>"


def lost_error(address: str, why: str, *, is_silent: bool = False) -> FedstackError:
    """Returns the error to raise for a connection that was lost. Its causes name the reason without details.

    Args:
      address: The address of the peer.
      why: Details, in a few words.
      is_silent: Whether the peer did not answer.
    """
    reason = NO_ANSWER if is_silent else BROKEN_OFF
    error = reason.error_at(address, why)
    error.causes = {address: reason.found}  # compared by those who count losses
    return error
