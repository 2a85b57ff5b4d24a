"""Maintains a remote session in the background: it renews the lease, disposes of values, and ends the session."""

import asyncio
import atexit
import contextlib
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import cast

from fedstack.computations.types.language import RetryableError
from fedstack.errors import FedstackError, StaleSessionError
from fedstack.executors.concurrency.coroutines import gather
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.traceback_filter import without_frames
from fedstack.transport.peers.io_loop import io_loop, start_apart
from fedstack.transport.wire.disposal import DisposalQueue

_logger = logging.getLogger(__name__)
# The maximum number of seconds that an unreferenced value waits for its batch to fill.
_DISPOSAL_SECONDS = 1.0
# The time limit for ending a session. It is less than the time that callers of `close` wait, so that an unresponsive
# peer is detected in time.
_END_SECONDS = 1.5
_END_SECONDS_IN_VAIN = 0.5


class SessionKeeper:
    """Maintains a session in the background, on the transport's event loop, from `start` to `end`.

    Args:
      session: The session.
      dispose_batch_size: The number of values that one call disposes of.
      clock: Returns the time in seconds.
    """

    def __init__(
        self, session: RemoteSession, dispose_batch_size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.session = session
        self._clock = clock
        self._batch_size = dispose_batch_size
        self._queue: DisposalQueue[str] = DisposalQueue(dispose_batch_size, _DISPOSAL_SECONDS, clock)
        self._renewed = clock()
        self._ending = False
        self._task: asyncio.Task[None] | None = None
        session.forget, session.take_forgotten = self.forget, self._take_few

    def start(self) -> None:
        """Starts the maintenance of the session. Call this method on the transport's event loop."""
        self.session.stub.io.ticks.add(self._look)
        _open.add(self)

    def forget(self, value: str) -> None:
        """Queues for disposal a value that is no longer referenced. It is safe to call this method in finalizers."""
        self._queue.add(value)

    def give_up(self) -> None:
        """Requests the end of the session. It is safe to call this method anywhere, including in finalizers."""
        self._ending = True

    async def end(self) -> None:
        """Disposes of the remaining values and ends the session on the peer. Never raises."""
        self._ending = True
        _open.discard(self)
        self.session.stub.io.ticks.discard(self._look)
        current = cast("asyncio.Task[None]", asyncio.current_task())
        self.session.stub.before_closing(current)
        if self._task is not None and not self._task.done() and self._task is not current:
            self._task.cancel()
            # If the connection is closed at the same time, the task fails with an error of the connection.
            with contextlib.suppress(asyncio.CancelledError, FedstackError):
                await self._task
        if not self.session.lost:
            stub = self.session.stub
            try:
                seconds = _END_SECONDS_IN_VAIN if stub.is_reached is False else _END_SECONDS
                await Deadline(seconds).wait(self._say_goodbye())
            except (RetryableError, asyncio.TimeoutError) as error:
                stub.is_reached = False
                without_frames(error)
            except FedstackError as error:
                _logger.debug("Ending a session at %s failed: %s", stub.address, error)
            self.session.lost = self.session.lost or "it has been closed"
        self.session.forget = lambda value: None  # breaks the reference cycle
        self.session.take_forgotten = lambda: ()

    async def _say_goodbye(self) -> None:
        rest = [value for batch in self._queue.take(force=True) for value in batch]
        await self._dispose([rest] if rest else [])
        if not self.session.lost:
            await self.session.end()

    def _take_few(self) -> Sequence[str]:
        """Returns the queued values if there are only a few, so that the next call can dispose of them.

        Returns no values if there are many, because many values are disposed of in batches.
        """
        if len(self._queue) >= self._batch_size:
            return ()
        return [value for batch in self._queue.take(force=True) for value in batch]

    def _look(self) -> None:
        """Starts a maintenance task if work is due. Of thousands of sessions, usually only a few have work due."""
        if self._task is not None and not self._task.done():
            return
        if self._ending or (not self.session.lost and (self._queue.is_due or self._is_renewal_due())):
            self._task = start_apart(self._tend())
        elif self.session.lost:
            self.session.stub.io.ticks.discard(self._look)

    async def _tend(self) -> None:
        await self._dispose(self._queue.take())
        if not self.session.lost and self._is_renewal_due():
            await self._renew()
        if self._ending:
            await self.end()

    def _is_renewal_due(self) -> bool:
        lease = self.session.lease_seconds
        return lease is not None and self._clock() - self._renewed >= lease / 3

    async def _renew(self) -> None:
        try:
            if not await self.session.renew():
                self.session.lost = "its lease has expired, or the worker was restarted"
            self._renewed = self._clock()
        except (FedstackError, RetryableError) as error:
            # The renewal is retried until the next call determines whether the worker is lost.
            _logger.debug("Renewing the lease of a session at %s failed: %s", self.session.stub.address, error)

    async def _dispose(self, batches: Sequence[Sequence[str]]) -> None:
        for number, batch in enumerate(batches):
            try:
                for value in await self.session.dispose(batch):
                    self._queue.add(value)
            except StaleSessionError as error:
                self.session.lost = str(error)
                return
            except RetryableError as error:
                _logger.debug(
                    "Disposing of values at %s failed and will be repeated: %s", self.session.stub.address, error
                )
                for value in itertools.chain.from_iterable(batches[number:]):
                    self._queue.add(value)
                return
            except FedstackError as error:
                _logger.debug("Disposing of values at %s failed: %s", self.session.stub.address, error)


class _OpenSessions:
    """The sessions that end with this process, as their contexts have not been closed.

    Peers would keep the values of such a session until its lease ends.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)
        atexit.register(self.end)

    def renew(self) -> None:
        """Starts without sessions in a forked child: they belong to its parent."""
        self._keepers: weakref.WeakSet[SessionKeeper] = weakref.WeakSet()

    def add(self, keeper: SessionKeeper) -> None:
        """Adds a session that has been opened."""
        self._keepers.add(keeper)

    def discard(self, keeper: SessionKeeper) -> None:
        """Removes a session that ends."""
        self._keepers.discard(keeper)

    def end(self) -> None:
        """Ends all sessions, and waits for it as long as the end of a context does."""
        if self._keepers:
            io_loop.finish(self._end_all())

    async def _end_all(self) -> None:
        await gather([keeper.end() for keeper in self._keepers if keeper.session.stub.io is io_loop])


_open = _OpenSessions()
