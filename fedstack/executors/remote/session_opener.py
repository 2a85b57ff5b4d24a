"""Opens a session on a peer on demand, and opens a new session when the current session is lost."""

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
    """Opens sessions on a peer. Can be used from any thread and event loop.

    At most one session is open at a time. An open session ends when this object is garbage-collected.

    Args:
      stub: Calls the peer. The opener does not close it.
      dispose_batch_size: The number of values that one call disposes of. A smaller batch is sent after one second.

    Attributes:
      stub: Calls the peer.
      cardinalities: The number of participants in the sessions, by placement; `None` if not set.
      connect_seconds: How many seconds to wait for an unreachable peer; `None` to fail immediately.
      worker_index: The index of the peer among the caller's workers, for functions to read; `None` for no index.
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
        """Whether the opener is closed and opens no more sessions."""
        return self._closed

    @property
    def current(self) -> SessionKeeper | None:
        """The keeper of the current session; `None` if no session is open or the session is known to have ended."""
        keeper = self._keeper
        return None if keeper is None or keeper.session.lost else keeper

    def restart(self, cardinalities: CardinalitiesType) -> None:
        """Ends the current session, and sets the numbers of participants for the next session."""
        self.cardinalities = cardinalities
        self._leave()

    async def connect(self) -> None:
        """Waits until the peer is reachable and has completed the handshake.

        Raises:
          WorkerUnavailableError: If the peer cannot be reached.
          AuthenticationError: If the peer rejects this client.
        """
        await need_event_loop()
        await self.stub.io.run(self._shake_hands())

    async def _shake_hands(self) -> None:
        await self._reach()
        await self.stub.handshake()

    async def _reach(self) -> None:
        """Waits until the peer is reachable, if `connect_seconds` is set."""
        if self.connect_seconds is not None:
            try:
                await reach(self.stub, self.connect_seconds)
            except WorkerUnavailableError as error:
                raise without_own_frames(error).with_traceback(None) from error.__cause__

    async def get(self) -> SessionKeeper:
        """Returns the keeper of the current session, and opens a session if there is none."""
        await need_event_loop()
        return self.current or await self.stub.io.run(self._open())

    async def _open(self) -> SessionKeeper:
        """Opens a session, which all concurrent callers share. Runs on the transport's event loop."""
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
                # The keeper does not refer to this opener, so the session ends when the opener is garbage-collected.
                weakref.finalize(self, keeper.give_up).atexit = False
                return keeper
            # Meanwhile, the opener was closed or the numbers of participants changed, so this session is not usable.
            self._keeper = None
            await keeper.end()
            if self._closed:
                raise ClosedError(
                    f"The executor at {self.stub.address} was closed while it was connecting; create a new executor"
                )

    async def call(self, keeper: SessionKeeper, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a call in a session, on the transport's event loop, and returns its result."""
        # The coroutine of the call is passed to the loop directly. If it were wrapped in another coroutine, it would
        # never be awaited if the outer coroutine were cancelled before its first step.
        return await self.watched(keeper, self.stub.io.run(work))

    async def watched(self, keeper: SessionKeeper, work: Coroutine[Any, Any, _T]) -> _T:
        """Returns the result of a call, and records a loss if its error shows that the session or the peer is lost."""
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
                f"The executor at {self.stub.address} was closed during a call; close it after its calls have ended"
            ) from None

    def _leave(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self.stub.io.finish(keeper.end())

    async def end(self) -> None:
        """Ends the session like `close`, but as a coroutine, so that several sessions can be ended concurrently.

        Call this method on the transport's event loop.
        """
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.end()

    def close(self) -> None:
        """Ends the session on the peer, which frees its values.

        Idempotent; never raises, even if the peer is unreachable.
        """
        self._closed = True
        self._leave()

    def __repr__(self) -> str:
        return f"<SessionOpener at {self.stub.address}{' closed' if self._closed else ''}>"
