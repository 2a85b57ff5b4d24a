"""Runs a remote caller's work within the caller's time limit, and stops the work when the caller stops listening.

The work of a phase, a closure or a method is a coroutine, which runs in one of two ways:

* Most work waits for other work, such as several functions or other workers. It runs as an asyncio task, and each of
  its functions runs on a thread of the executor.
* A method that consists of a single function may be one of many calls that wait for each other, possibly more calls
  than the executor has threads. Each call therefore runs as a single job on a thread of the service, from argument to
  result. With many concurrent calls, this is also a few percent faster.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Generic, TypeVar

from fedstack.errors import DeadlineExceededError
from fedstack.executors.concurrency.coroutines import end_all, run_at_once
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.foundations.traceback_filter import consume_exception
from fedstack.transport.peers.io_loop import arrival
from fedstack.transport.wire.frames import Heartbeat

_T = TypeVar("_T")
# The interval at which running work is checked for progress.
_LOOK_SECONDS = 1.0
_MOST_SECONDS = 1e6


class Work(Generic[_T]):
    """Work that runs in the current scope, on behalf of a call.

    Args:
      work: The coroutine to run.
      threads: The threads on which to run work that consists of a single function; `None` to run the work as an asyncio
        task.
      interruptible: Whether `interrupt` may be called, for work that runs as a task.

    Attributes:
      look_seconds: The interval at which `beats` looks for progress, in seconds.

    Raises:
      ClosedError: If `threads` is closed.
    """

    def __init__(
        self, work: Coroutine[Any, Any, _T], threads: LeafThreads | None = None, *, interruptible: bool = False
    ) -> None:
        self.look_seconds = _LOOK_SECONDS
        self._work = work
        self._threads = threads
        self._begun = asyncio.get_running_loop().time()
        self._interruption = asyncio.get_running_loop().create_future() if interruptible else None
        self._outcome: Job[_T] | asyncio.Task[_T]
        if threads is None:
            self._outcome = asyncio.ensure_future(work)
            self._outcome.add_done_callback(consume_exception)
            return
        try:
            self._outcome = threads.submit(lambda: run_at_once(work))
        except BaseException:
            work.close()  # Python warns about coroutines that were never awaited
            raise

    async def ends_soon(self, between: float, seconds: float = 0.0) -> bool:
        """Waits for the work, and returns whether it ends before `beats` would yield its first heartbeat.

        For short work, this is faster than `beats`. The arguments are the same as those of `beats`.
        """
        try:
            return await self._is_done(min(_LOOK_SECONDS, between, _limit(seconds)))
        except BaseException as error:
            await self._end(error)
            raise

    async def beats(
        self, progress: ProgressCounts, between: float, seconds: float = 0.0
    ) -> AsyncGenerator[Heartbeat, None]:
        """Yields heartbeats until the work is done, and stops the work if the consumer stops iterating.

        Work that runs as a task is stopped by cancelling the task. A function that has not started does not run; a
        function that is already running continues, and its result is discarded.

        Args:
          progress: The progress of the work. A change triggers an early heartbeat.
          between: The maximum number of seconds between heartbeats.
          seconds: The time limit for the work in seconds. Values that are not positive mean no limit.

        Raises:
          DeadlineExceededError: If the work exceeds the time limit.
        """
        look = min(self.look_seconds, between)
        allowed = _limit(seconds)
        now = asyncio.get_running_loop().time
        sent, due, end = None, self._begun + between, self._begun + allowed
        wait = max(0.0, self._begun + min(look, allowed) - now())
        try:
            while not await self._is_done(wait):
                if now() >= end:
                    raise DeadlineExceededError(
                        f"Expected the call to end within {seconds:.3g} seconds, found it still running; increase "
                        "the time limit of the call (its effects so far are not undone)"
                    )
                pieces = progress.work()
                found = progress.done, progress.running, progress.failures
                news = (*found, *((piece.first_client, piece.function) for piece in pieces))
                is_interrupted = self._interruption is not None and self._interruption.done()
                if is_interrupted:
                    self._interruption = asyncio.get_running_loop().create_future()
                if is_interrupted or news != sent or now() + look / 2 >= due:
                    sent, due = news, now() + between
                    yield Heartbeat(*found, tuple(pieces))
                look = min(self.look_seconds, between)
                wait = min(look, max(0.0, end - now()))
        except BaseException as error:
            await self._end(error)
            raise

    def interrupt(self) -> None:
        """Makes `beats` yield a heartbeat now. Called on the event loop of the work."""
        assert self._interruption is not None, "only interruptible work is interrupted"
        if not self._interruption.done():
            self._interruption.set_result(None)

    async def _is_done(self, seconds: float) -> bool:
        """Waits at most the given number of seconds for the work, and returns whether it is done."""
        if isinstance(self._outcome, Job):
            return await arrival(self._outcome, seconds)
        if not self._outcome.done():
            waits = [self._outcome] if self._interruption is None else [self._outcome, self._interruption]
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return self._outcome.done()

    async def _end(self, error: BaseException) -> None:
        if not isinstance(self._outcome, Job):
            await end_all([self._outcome], error)
        elif self._threads is not None:
            self._threads.give_up(self._outcome)
            if not self._outcome.running():
                self._work.close()

    def result(self) -> _T:
        """Returns the result of work that is done, or raises its error."""
        if isinstance(self._outcome, Job):
            self._work.close()  # Python warns about coroutines that were never awaited, as after a refused job
        return self._outcome.result()


def _limit(seconds: float) -> float:
    """Returns a time limit in seconds; infinity for zero, negative and very large numbers, and for NaN."""
    return seconds if 0.0 < seconds < _MOST_SECONDS else math.inf
