"""Opens a session at a peer on demand, and a new session when that is lost; calls go through it."""

import asyncio
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from fedstack.computations.types.language import CardinalitiesType
from fedstack.errors import (
    ClosedError,
    DeadlineExceededError,
    FedstackError,
    StaleSessionError,
    WorkerUnavailableError,
)
from fedstack.executors.concurrency.coroutines import need_event_loop
from fedstack.executors.remote.extended_session import open_session
from fedstack.executors.remote.remote_sessions import checked_stub, naming_the_worker
from fedstack.executors.remote.session_keeper import SessionKeeper
from fedstack.foundations.number_checks import check_whole_number
from fedstack.foundations.traceback_filter import consume_exception, without_own_frames
from fedstack.membership.reaching import reach
from fedstack.transport.peers.executor_stub import ExecutorStub

_T = TypeVar("_T")


class SessionOpener:
    """One session at a peer at any time, from any thread and event loop.

    The session ends once nothing refers to this anymore.

    Args:
      stub: Calls the peer. It stays open.
      dispose_batch_size: How many values are disposed of in one call; a partial batch is sent after a second.

    Attributes:
      stub: Calls the peer.
      cardinalities: How many participants the sessions have, by placement; `None` if not set.
      connect_seconds: How long to wait for a peer that is unreachable, in seconds; `None` to fail at once.
      worker_index: The peer's index among the caller's workers, for functions that ask; `None` if it has none.
    """

    def __init__(self, stub: ExecutorStub, dispose_batch_size: int = 20) -> None:
        check_whole_number("dispose_batch_size", dispose_batch_size, 1)
        self.stub = checked_stub(stub)
        self._dispose_batch_size = dispose_batch_size
        self.cardinalities: CardinalitiesType | None = None
        self.connect_seconds: float | None = None
        self.worker_index: int | None = None
        self._keeper: SessionKeeper | None = None
        self._opening: asyncio.Task[SessionKeeper] | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether this was closed, and opens no more sessions."""
        return self._closed

    @property
    def current(self) -> SessionKeeper | None:
        """The current session, if it is not known to have ended."""
        keeper = self._keeper
        return None if keeper is None or keeper.session.lost else keeper

    def restart(self, cardinalities: CardinalitiesType) -> None:
        """Ends the session; the next one has these numbers of participants."""
        self.cardinalities = cardinalities
        self._leave()

    async def connect(self) -> None:
        """Returns once the peer can be reached and answers.

        Raises:
          WorkerUnavailableError: If it cannot be reached.
          AuthenticationError: If it rejects this client.
        """
        await need_event_loop()
        await self.stub.io.run(self._shake_hands())

    async def _shake_hands(self) -> None:
        await self._reach()
        await self.stub.handshake()

    async def _reach(self) -> None:
        """Waits for the peer if `connect_seconds` is set."""
        if self.connect_seconds is not None:
            try:
                await reach(self.stub, self.connect_seconds)
            except WorkerUnavailableError as error:
                raise without_own_frames(error).with_traceback(None) from error.__cause__

    async def get(self) -> SessionKeeper:
        """Returns the session; opens one if there is none."""
        await need_event_loop()
        return self.current or await self.stub.io.run(self._open())

    async def _open(self) -> SessionKeeper:
        """Opens a session, once for all concurrent callers; runs on the transport's loop."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._open_once())
            self._opening.add_done_callback(consume_exception)
        return await asyncio.shield(self._opening)

    async def _open_once(self) -> SessionKeeper:
        while True:
            keeper, cardinalities = self.current, self.cardinalities
            if keeper is not None:
                return keeper
            await self._reach()
            try:
                session = await open_session(self.stub, cardinalities or {}, self.worker_index)
            except FedstackError as error:
                raise naming_the_worker(error, self.stub) from error.__cause__
            keeper = SessionKeeper(session, self._dispose_batch_size, self.stub.io.time)
            keeper.start()
            self._keeper = keeper
            if not self._closed and cardinalities is self.cardinalities:
                # The keeper does not refer to this: once nothing refers to the keeper anymore, the session ends too.
                weakref.finalize(self, keeper.give_up).atexit = False
                return keeper
            # Meanwhile this was closed, or the numbers of participants changed: open a session for those.
            self._keeper = None
            await keeper.end()
            if self._closed:
                raise ClosedError(f"The executor at {self.stub.address} was closed while it connected")

    async def call(self, keeper: SessionKeeper, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a call in a session, on the transport's loop."""
        # The inner coroutine goes to the loop directly: inside another one, it would never be awaited if that were
        # cancelled before its first step.
        return await self.watched(keeper, self.stub.io.run(work))

    async def watched(self, keeper: SessionKeeper, work: Coroutine[Any, Any, _T]) -> _T:
        """Awaits a call, and records it if its error shows that the session or the peer is lost."""
        try:
            result = await work
            self.stub.is_reached = True
            return result
        except (FedstackError, asyncio.CancelledError) as error:
            if isinstance(error, StaleSessionError):
                keeper.session.lost = str(error)
                self._check_still_open()
            elif isinstance(error, (WorkerUnavailableError, DeadlineExceededError)):
                self.stub.is_reached = False
                self._check_still_open()
            raise without_own_frames(naming_the_worker(error, self.stub)).with_traceback(None) from error.__cause__

    def _check_still_open(self) -> None:
        if self._closed:
            raise ClosedError(
                f"The executor at {self.stub.address} was closed during a call; close it when its calls have ended"
            ) from None

    def _leave(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self.stub.io.finish(keeper.end())

    async def end(self) -> None:
        """Does the same as `close`, on the transport's loop, so that several can end at the same time."""
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.end()

    def close(self) -> None:
        """Ends the session at the peer, which frees its values. Idempotent; never raises, even for a dead peer."""
        self._closed = True
        self._leave()

    def __repr__(self) -> str:
        return f"<SessionOpener at {self.stub.address}{' closed' if self._closed else ''}>"
