"""Runs leaf work on threads: a bounded pool of daemon threads, and the caller's own thread where it would only wait.

The event loop is never blocked. A synchronous context blocks its caller anyway, so it drives a computation on the
caller's thread and lets leaf work run right there: no hand-over, and a debugger and Ctrl-C work as in plain Python.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.thread_pool import ThreadPool
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.traceback_filter import drop_outcome
from fedstack.transport.peers.loop_calls import arrival

_T = TypeVar("_T")

# The cores that this process may use; asking each time costs as much as a short computation.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_inline = threading.local()


def most_threads(wanted: int | None = None) -> int:
    """Returns how many threads run functions at most: as many as wanted; by default 32, or four per core if more."""
    return wanted or max(32, 4 * CORES)


class RunInline:
    """Lets leaf work run on this thread for the duration of a block, or not; see `runs_inline`."""

    __slots__ = ("_before", "_enabled")  # and no generator, as each call enters two: that takes four times as long

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._before = getattr(_inline, "enabled", False)
        _inline.enabled = self._enabled

    def __exit__(self, *error: object) -> None:
        _inline.enabled = self._before


def runs_inline() -> bool:
    """Tells whether leaf work runs on the current thread."""
    return getattr(_inline, "enabled", False)


@contextlib.contextmanager
def without_threads() -> Generator[None, None, None]:
    """Lets work for threads run on this one for the duration of the block, right when it is handed in.

    Unlike `RunInline` this is for a thread with an event loop, which stands still meanwhile: that of a simulation,
    where nothing may depend on the order in which threads get their turns.
    """
    before = getattr(_inline, "has_no_threads", False)
    _inline.has_no_threads = True
    try:
        yield
    finally:
        _inline.has_no_threads = before


class LeafThreads:
    """A bounded pool of daemon threads for leaf work.

    Threads start when there is work and none is idle, and end after a while without work or at `close()`. They are
    daemons: a leaf that never returns cannot keep the process from ending.

    Work waits where the system starts no more threads, until one of those that there are is free; if there is none, it
    fails: with `WorkerUnavailableError` if it is for another process, which may find another worker, else with
    `ResourceLimitError`.

    Args:
      max_threads: The most threads; by default 32, or four per core if that is more.
      idle_seconds: How long a thread waits for work before it ends.
      counts_callers: Whether callers that do work themselves (`RunInline`) count as threads, so that no more of it
        than `max_threads` is done at the same time.
      for_others: How many threads there may be beyond `max_threads`, for the work of owners that have less than half of
        those: functions that never end keep their threads from everybody else, even when they were cancelled.
      work_ends: Whether all work is known to end, since no code of users runs in it: when nobody waits for it any more,
        its thread comes back, and no other one takes its place.
    """

    def __init__(
        self,
        max_threads: int | None = None,
        idle_seconds: float = 10.0,
        *,
        counts_callers: bool = False,
        for_others: int = 0,
        work_ends: bool = False,
    ) -> None:
        self.max_threads = most_threads(max_threads)
        self._counts_callers = counts_callers
        self._work_ends = work_ends
        self._pool = ThreadPool(self.max_threads, idle_seconds, for_others)
        # Threads refer to the pool only: when nobody refers to this object any more, they end as if it had been closed.
        weakref.finalize(self, self._pool.close).atexit = False

    def submit(self, work: Callable[[], _T]) -> Job[_T]:
        """Runs `work` on a thread of the pool, in the caller's context variables.

        Raises:
          ClosedError: If the pool is closed.
        """
        job = Job(work)
        if getattr(_inline, "has_no_threads", False):
            job.run()
        else:
            self._pool.add(job)
        return job

    async def run(self, work: Callable[[], _T], cancel: Callable[[], None] | None = None) -> _T:
        """Runs `work` without blocking the event loop and returns its result.

        Args:
          work: What to run; on the current thread if that is allowed (`RunInline`), else on one of the pool.
          cancel: Called when the caller is cancelled while the work goes on; it should make the work end early.
        """
        if runs_inline():
            # What the work itself starts, an event loop say, is not this coroutine and has no driver.
            with RunInline(False):
                return self.run_here(work)
        future = self.submit(work)
        try:
            if not future.done():
                await arrival(future)
        except asyncio.CancelledError:
            if cancel is not None:
                cancel()
            self.give_up(future)
            raise
        try:
            return future.result()
        finally:
            del future  # it has the error, whose frames have this one

    def run_here(self, work: Callable[[], _T]) -> _T:
        """Runs `work` on the caller's thread, which counts as one of the pool's if callers do."""
        return self._pool.run_here(work) if self._counts_callers else work()

    def abandon(self, job: Job[Any]) -> None:
        """Gives up what `submit` has returned: it does not begin any more, or its thread may never come back."""
        if job.cancel():
            self._pool.remove(job)
        elif not self._work_ends:
            self._pool.abandon(job)

    def give_up(self, job: Job[Any]) -> None:
        """Gives up what `submit` has returned, and lets go of what comes of it."""
        self.abandon(job)
        job.add_done_callback(drop_outcome)

    def close(self) -> None:
        """Lets idle threads end; work that has been handed in is done to its end. Idempotent."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"<LeafThreads {self._pool.threads} threads, at most {self.max_threads}>"


class SharedLeafThreads:
    """One pool for several executors, so that its bound is one for all of them. It is open as long as one of them is.

    Args:
      most: How much work is done at the same time, by callers too; by default on 32 threads, or four per core if that
        is more, and by any number of callers.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._users = 0
        self._threads: LeafThreads | None = None
        self.renew()
        renew_after_fork(self)

    def lend(self) -> LeafThreads:
        """Returns the pool; whoever gets it gives it back once, and does not close it."""
        with self._lock:
            self._users += 1
            self._threads = self._threads or LeafThreads(self._most, counts_callers=self._most is not None)
            return self._threads

    def give_back(self) -> None:
        """Takes note that one user fewer needs the pool."""
        with self._lock:
            self._users -= 1
            if self._users or self._threads is None:
                return
            threads, self._threads = self._threads, None
        threads.close()

    def renew(self) -> None:
        """See `after_fork`. That users of other threads give nothing back only keeps the pool open."""
        self._lock = threading.Lock()
