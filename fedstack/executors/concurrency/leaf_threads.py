"""Runs leaf work on threads: a bounded pool of daemon threads, and the caller's own thread where it would only wait.

Nothing blocks an event loop. A synchronous context blocks its caller anyway, so it drives a computation on the caller's
thread and runs leaf work right there: no hand-over, and a debugger and Ctrl-C work as in plain Python.

Two things belong to these threads. Work of fedstack's own that grows with a message runs on small pools (`off_loop`,
`sized`): threads share the interpreter lock with the loop, which gets it back every few milliseconds. And while several
leaf threads run, BLAS is limited to one thread each (`one_blas_thread`).
"""

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.coroutines import RunInline, runs_inline
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.thread_pool import ThreadPool
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.traceback_filter import drop_outcome
from fedstack.transport.peers.io_loop import arrival

_T = TypeVar("_T")

# The cores that this process may use; asking each time costs as much as a short computation.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_without = threading.local()


def most_threads(wanted: int | None = None) -> int:
    """Returns the most threads that run functions: the number given, or 32, or four per core if that is more."""
    return wanted or max(32, 4 * CORES)


@contextlib.contextmanager
def without_threads() -> Generator[None, None, None]:
    """Runs submitted work at once on the current thread for the duration of the block.

    Unlike `RunInline`, this is for a thread with an event loop, which it blocks: the loop of a simulation, where
    nothing may depend on the scheduling of threads.
    """
    before = getattr(_without, "threads", False)
    _without.threads = True
    try:
        yield
    finally:
        _without.threads = before


class LeafThreads:
    """A bounded pool of daemon threads for leaf work.

    Threads start when there is work and none is idle, and end after a while without work or at `close()`. They are
    daemons: a leaf that never returns cannot keep the process from ending.

    If the system starts no more threads, work waits for an existing one. If there is none, it fails: with
    `WorkerUnavailableError` if it is for another process, which may find another worker, else with
    `ResourceLimitError`.

    Args:
      max_threads: The most threads; by default 32, or four per core if that is more.
      idle_seconds: How long a thread waits for work before it ends.
      counts_callers: Whether callers that run work themselves (`RunInline`) count as threads, so that at most
        `max_threads` pieces run at the same time.
      for_others: How many threads there may be beyond `max_threads`, for owners that have less than half of those:
        functions that never end keep their threads from all other owners, even after they were cancelled.
      work_ends: Whether all work is known to end because it runs no user code: the thread of abandoned work comes back,
        so no other thread replaces it.
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
        # Threads refer to the pool only, so they end when this object is garbage-collected, as if it had been closed.
        weakref.finalize(self, self._pool.close).atexit = False

    def submit(self, work: Callable[[], _T]) -> Job[_T]:
        """Runs `work` on a thread of the pool, in the caller's context variables.

        Raises:
          ClosedError: If the pool is closed.
        """
        job = Job(work)
        if getattr(_without, "threads", False):
            job.run()
        else:
            self._pool.add(job)
        return job

    async def run(self, work: Callable[[], _T], cancel: Callable[[], None] | None = None) -> _T:
        """Runs `work` without blocking the event loop and returns its result.

        Args:
          work: What to run; on the current thread if that is allowed (`RunInline`), else on one of the pool.
          cancel: Called when the caller is cancelled while the work runs; it should make the work end early.
        """
        if runs_inline():
            # An event loop, say, that the work itself starts has no driver as this coroutine has.
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
            del future  # its error refers to this frame

    def run_here(self, work: Callable[[], _T]) -> _T:
        """Runs `work` on the caller's thread, which counts as one of the pool's if callers do."""
        return self._pool.run_here(work) if self._counts_callers else work()

    def abandon(self, job: Job[Any]) -> None:
        """Gives up a job: if it has begun, its thread may never come back, else it never begins."""
        if job.cancel():
            self._pool.remove(job)
        elif not self._work_ends:
            self._pool.abandon(job)

    def give_up(self, job: Job[Any]) -> None:
        """Gives up a job and drops its outcome."""
        self.abandon(job)
        job.add_done_callback(drop_outcome)

    def close(self) -> None:
        """Ends idle threads; submitted work still runs to its end. Idempotent."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"<LeafThreads {self._pool.threads} threads, at most {self.max_threads}>"


class SharedLeafThreads:
    """One pool, with one bound, for several executors. It is open as long as one of them uses it.

    Args:
      most: How much work runs at the same time, that of callers included; by default on 32 threads, or four per core if
        that is more, and on any number of callers' threads.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._users = 0
        self._threads: LeafThreads | None = None
        self.renew()
        renew_after_fork(self)

    def lend(self) -> LeafThreads:
        """Returns the pool; the user returns it once with `give_back` and does not close it."""
        with self._lock:
            self._users += 1
            self._threads = self._threads or LeafThreads(self._most, counts_callers=self._most is not None)
            return self._threads

    def give_back(self) -> None:
        """Counts one user less, and closes the pool after the last."""
        with self._lock:
            self._users -= 1
            if self._users or self._threads is None:
                return
            threads, self._threads = self._threads, None
        threads.close()

    def renew(self) -> None:
        """See `after_fork`. Users on threads that the child does not have only keep the pool open."""
        self._lock = threading.Lock()


_M = TypeVar("_M", bound=Message)

# Messages up to this size are handled on the loop: at worst a byte costs a microsecond.
LOOP_BYTES = 16 << 10
# Larger pieces of raw bytes are copied at gigabytes a second.
LOOP_COPY_BYTES = 4 << 20
# A byte of a struct or a list costs many times what one of an array does.
PIECES_WEIGHT = 8
# Larger work has threads of its own, so that smaller work does not wait for it.
_LIGHT_BYTES = 1 << 20
_light_threads = LeafThreads(2, idle_seconds=1.0, work_ends=True)
_threads = LeafThreads(4, idle_seconds=1.0, work_ends=True)


async def off_loop(work: Callable[[], _T]) -> _T:
    """Runs work of fedstack's own on a thread and returns its result; on this thread where that blocks no loop."""
    return await _threads.run(work)


async def sized(size: int, work: Callable[[], _T], most: int = LOOP_BYTES) -> _T:
    """Runs work on data of a size: on a thread if it is large."""
    if size <= most:
        return work()
    return await (_light_threads if size <= _LIGHT_BYTES else _threads).run(work)


async def read_message(message: type[_M], content: bytes) -> _M:
    """Parses a message, on a thread if it is large.

    Raises:
      InvalidValueError: If the bytes are not such a message.
    """
    return await sized(len(content), lambda: parsed(message, content))


def parsed(message: type[_M], content: bytes) -> _M:
    """Parses a message on this thread; see `read_message`."""
    try:
        return message.FromString(content)
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a {message.DESCRIPTOR.name}, found {len(content)} bytes that are not one, or are nested too "
            f"deep: {error}"
        ) from error


@functools.cache
def _controller():
    import threadpoolctl  # looks at every loaded library, so not before there is a second thread

    return threadpoolctl.ThreadpoolController()


class _BlasLimit:
    """The limit of this process, and its users.

    Two leaf threads whose matrix products each start two BLAS threads are slower than one leaf thread (measured: 129
    against 176 ms).
    """

    def __init__(self) -> None:
        self._limiter: contextlib.AbstractContextManager[object] | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forgets the users, which a forked child does not have; its next user restores the setting.

        Restoring it at once might start threads of BLAS, and most children only run another program.
        """
        self._lock = threading.Lock()
        self._users: set[object] = set()

    def add(self, user: object) -> None:
        with self._lock:
            if self._limiter is None:
                self._limiter = _controller().limit(limits=1, user_api="blas")
            self._users.add(user)

    def remove(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users and self._limiter is not None:
                self._limiter.__exit__(None, None, None)
                self._limiter = None


_limit = _BlasLimit()


@contextlib.contextmanager
def one_blas_thread() -> Generator[None, None, None]:
    """Limits BLAS to one thread while any thread is inside such a block; the last one restores the setting."""
    user = object()
    _limit.add(user)
    try:
        yield
    finally:
        _limit.remove(user)
