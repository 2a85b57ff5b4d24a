"""Runs work for others: on the right thread, for as long as it is wanted and has time.

Phases, closures and methods all come through here. Their work is a coroutine, and there are two ways to run it. Most
work waits for something: for several functions, for other workers. It is a task, and each of its functions goes to a
thread of its executor and back. A method that is one function may be one of many that wait for each other, more than an
executor has threads: it is a job of a thread of the service's, from argument to answer. With many calls in flight that
is a few percent faster, too.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Generic, TypeVar

from fedstack.errors import DeadlineExceededError
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.concurrency.side_by_side import end_all
from fedstack.executors.concurrency.sync_driver import run_at_once
from fedstack.foundations.traceback_filter import consume_exception
from fedstack.transport.peers.loop_calls import arrival
from fedstack.transport.wire.frames import Heartbeat

_T = TypeVar("_T")
# How often it is looked whether there is something to tell of work that runs.
_LOOK_SECONDS = 1.0
_MOST_SECONDS = 1e6


class Work(Generic[_T]):
    """Work that runs in the scope of the current one, on behalf of a call.

    Args:
      work: What to run.
      threads: Where to run work that is one function; `None` for work that waits for something, which is a task.

    Raises:
      ClosedError: If the threads are closed.
    """

    def __init__(
        self, work: "Coroutine[Any, Any, _T] | asyncio.Future[_T]", threads: LeafThreads | None = None
    ) -> None:
        self._work = work
        self._threads = threads
        self._outcome: Job[_T] | asyncio.Future[_T]
        if threads is None or isinstance(work, asyncio.Future):
            self._outcome = asyncio.ensure_future(work)
            self._outcome.add_done_callback(consume_exception)
            return
        try:
            self._outcome = threads.submit(lambda: run_at_once(work))
        except BaseException:
            work.close()  # a coroutine that has never begun would complain
            raise

    async def beats(self, progress: ProgressCounts, between: float, seconds: float = 0.0) -> AsyncIterator[Heartbeat]:
        """Yields a heartbeat now and then until the work is done, and ends it when nobody listens any more.

        A task is cancelled, and a function that has not begun never does. One that runs already goes on for nobody.

        Args:
          progress: What there is to tell of the work. When that changes there is a heartbeat sooner.
          between: How many seconds there are between heartbeats at most.
          seconds: How long the work may take; anything but a positive number is any time.

        Raises:
          DeadlineExceededError: If it takes longer.
        """
        now = asyncio.get_running_loop().time
        look = min(_LOOK_SECONDS, between)
        told, due = None, now() + between
        end = now() + seconds if 0.0 < seconds < _MOST_SECONDS else math.inf  # NaN is neither
        try:
            while not await self._is_done(min(look, max(0.0, end - now()))):
                if now() >= end:
                    raise DeadlineExceededError(
                        f"The call had {seconds:.3g} seconds, and took longer; what it did until then is done; allow "
                        "more time"
                    )
                pieces = progress.work()
                found = progress.done, progress.running, progress.failures
                news = (*found, *((piece.first_client, piece.function) for piece in pieces))
                if news != told or now() + look / 2 >= due:
                    told, due = news, now() + between
                    yield Heartbeat(*found, tuple(pieces))
        except BaseException as error:
            await self._end(error)
            raise

    async def _is_done(self, seconds: float) -> bool:
        """Waits for the end, so many seconds at most."""
        if isinstance(self._outcome, Job):
            return await arrival(self._outcome, seconds)
        if not self._outcome.done():
            await asyncio.wait([self._outcome], timeout=seconds)
        return self._outcome.done()

    async def _end(self, error: BaseException) -> None:
        outcome = self._outcome
        if not isinstance(outcome, Job):
            await end_all([outcome], error)
        elif self._threads is not None and not isinstance(self._work, asyncio.Future):
            self._threads.give_up(outcome)
            if not outcome.running():
                self._work.close()

    def result(self) -> _T:
        """Returns the result of work that is done, or raises its error."""
        if not isinstance(self._work, asyncio.Future) and isinstance(self._outcome, Job):
            self._work.close()  # the threads may have refused it, and a coroutine that has never begun would complain
        return self._outcome.result()
