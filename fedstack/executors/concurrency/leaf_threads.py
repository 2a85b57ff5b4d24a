"""Runs leaf work on a bounded pool of daemon threads, or on the caller's thread if that thread would only wait.

No work blocks an event loop. A synchronous context blocks its caller anyway, so it drives a computation on the caller's
thread and runs leaf work there. This avoids switching threads, and a debugger and Ctrl-C work as in plain Python.

Internal work of fedstack whose cost grows with the size of a message runs on small pools (`off_loop`, `sized`), so that
the event loop can take the interpreter lock again every few milliseconds.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.coroutines import RunInline, runs_inline
from fedstack.executors.concurrency.exit_wait import wait_for_functions as wait_for_functions
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.thread_pool import ThreadPool
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.traceback_filter import drop_outcome
from fedstack.transport.peers.io_loop import arrival

_T = TypeVar("_T")


def _usable_cores() -> int:
    """Returns the number of cores that this process may use: `PYTHON_CPU_COUNT` if set, as for Python 3.13 itself."""
    chosen = os.environ.get("PYTHON_CPU_COUNT", "")
    if chosen.isdecimal() and int(chosen):
        return int(chosen)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CORES = _usable_cores()  # each query would cost as much as a short computation
_without = threading.local()


def most_threads(wanted: int | None = None) -> int:
    """Returns the maximum number of threads that run functions.

    Args:
      wanted: The requested number. By default, the maximum is 32 or four per core, whichever is larger.
    """
    return wanted or max(32, 4 * CORES)


@contextlib.contextmanager
def without_threads() -> Generator[None, None, None]:
    """Runs submitted work immediately on the current thread, for the duration of the block.

    Unlike `RunInline`, this is for a thread with an event loop, which is blocked meanwhile. A simulation uses it so
    that its outcome does not depend on the scheduling of threads.
    """
    before = getattr(_without, "threads", False)
    _without.threads = True
    try:
        yield
    finally:
        _without.threads = before


def is_without_threads() -> bool:
    """Returns whether the current thread is in a block of `without_threads`."""
    return getattr(_without, "threads", False)


class LeafThreads:
    """A bounded pool of daemon threads for leaf work.

    A thread starts when work is submitted and no thread is idle. It ends after `idle_seconds` without work, or at
    `close()`. All threads are daemon threads, so a leaf that never returns cannot keep the process alive.

    If the system cannot start another thread, work waits for an existing thread. If no thread exists, work for another
    process fails with `WorkerUnavailableError`, so that the sender can use another worker. Other work fails with
    `ResourceLimitError`.

    Args:
      max_threads: The maximum number of threads. By default, it is 32 or four per core, whichever is larger.
      idle_seconds: The number of seconds that a thread waits for work before it ends.
      counts_callers: Whether callers that run work on their own thread (`RunInline`) count as threads, so that at most
        `max_threads` jobs run at the same time.
      for_others: The number of threads beyond `max_threads` for owners that have less than half of `max_threads`.
        Without these threads, functions that never end would block all other owners, even after being cancelled.
      work_ends: Whether all work is known to end because it runs no user code. The thread of abandoned work then
        becomes available again, so it is not replaced.
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
        # Threads refer only to the pool. They end when this object is garbage-collected, as if it had been closed.
        weakref.finalize(self, self._pool.close).atexit = False

    def submit(self, work: Callable[[], _T]) -> Job[_T]:
        """Runs `work` on a thread of the pool, in a copy of the caller's context.

        Raises:
          ClosedError: If the pool is closed.
        """
        job = Job(work)
        if is_without_threads():
            job.run()
        else:
            self._pool.add(job)
        return job

    async def run(self, work: Callable[[], _T], cancel: Callable[[], None] | None = None) -> _T:
        """Runs `work` without blocking the event loop and returns its result.

        Args:
          work: The function to run. It runs on the current thread if `RunInline` allows it, otherwise in the pool.
          cancel: Called when the caller is cancelled while the work runs. It should make the work end early.
        """
        if runs_inline():
            # The work may start its own event loop, whose coroutines are not driven in the same way as this coroutine.
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
            del future  # breaks the reference cycle: its error refers to this frame

    def run_here(self, work: Callable[[], _T]) -> _T:
        """Runs `work` on the caller's thread, which counts as a thread of the pool if callers are counted."""
        return self._pool.run_here(work) if self._counts_callers else work()

    def abandon(self, job: Job[Any]) -> None:
        """Abandons a job. A job that has not started is cancelled; a running job may keep its thread forever."""
        if job.cancel():
            self._pool.remove(job)
        elif not self._work_ends:
            self._pool.abandon(job)

    def give_up(self, job: Job[Any]) -> None:
        """Abandons a job and discards its outcome."""
        self.abandon(job)
        job.add_done_callback(drop_outcome)

    def set_aside(self, job: Job[Any], *, waits: bool) -> None:
        """Records that the thread of a running job waits from now on, so that it is replaced, or no longer waits."""
        self._pool.set_aside(job, 1 if waits else -1)

    def close(self) -> None:
        """Stops idle threads. Submitted work still runs to completion. Idempotent."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"<LeafThreads {self._pool.threads} threads, at most {self.max_threads}>"


class SharedLeafThreads:
    """A pool of threads that several executors share, with a common limit. It is open while any executor uses it.

    Args:
      most: The maximum number of jobs that run at the same time, including work on callers' threads. By default, the
        pool has 32 threads or four per core, whichever is larger, and work on callers' threads is not limited.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._users = 0
        self._threads: LeafThreads | None = None
        self.renew()
        renew_after_fork(self)

    def lend(self) -> LeafThreads:
        """Returns the pool. The caller must call `give_back` exactly once, and must not close the pool."""
        with self._lock:
            self._users += 1
            self._threads = self._threads or LeafThreads(self._most, counts_callers=self._most is not None)
            return self._threads

    def give_back(self) -> None:
        """Ends the use of the pool by one caller of `lend`. The pool is closed when its last user has returned it."""
        with self._lock:
            self._users -= 1
            if self._users or self._threads is None:
                return
            threads, self._threads = self._threads, None
        threads.close()

    def renew(self) -> None:
        """Replaces the lock in a forked child; see `after_fork`.

        Users on threads that do not exist in the child are still counted. They only keep the pool open.
        """
        self._lock = threading.Lock()


_M = TypeVar("_M", bound=Message)

# Messages up to this size are processed on the event loop, at a cost of at most one microsecond per byte.
LOOP_BYTES = 16 << 10
# Raw bytes up to this size are copied on the event loop, at a rate of gigabytes per second.
LOOP_COPY_BYTES = 4 << 20
# A byte of a struct or a list costs this many times as much as a byte of an array.
PIECES_WEIGHT = 8
# Larger work runs on separate threads, so that smaller work does not wait for it.
_LIGHT_BYTES = 1 << 20
_light_threads = LeafThreads(2, idle_seconds=1.0, work_ends=True)
_threads = LeafThreads(4, idle_seconds=1.0, work_ends=True)


async def off_loop(work: Callable[[], _T]) -> _T:
    """Runs internal work of fedstack without blocking an event loop, and returns its result.

    The work runs on a thread of a pool, or on the current thread if `RunInline` allows it.
    """
    return await _threads.run(work)


async def sized(size: int, work: Callable[[], _T], most: int = LOOP_BYTES) -> _T:
    """Runs work on data of a given size and returns its result.

    Args:
      size: The size of the data in bytes.
      work: The function to run. It runs on the current thread for small data, and on a thread of a pool for large data.
      most: The maximum size of small data in bytes.
    """
    if size <= most:
        return work()
    return await (_light_threads if size <= _LIGHT_BYTES else _threads).run(work)


async def read_message(message: type[_M], content: bytes) -> _M:
    """Parses a message, on a thread of a pool if it is large.

    Raises:
      InvalidValueError: If `content` is not a valid message of this type.
    """
    return await sized(len(content), lambda: parsed(message, content))


def parsed(message: type[_M], content: bytes) -> _M:
    """Parses a message on the current thread; see `read_message`."""
    try:
        return message.FromString(content)
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a serialized {message.DESCRIPTOR.name}, found {len(content)} bytes that cannot be parsed, or a "
            f"message that is nested too deeply: {error}"
        ) from error
