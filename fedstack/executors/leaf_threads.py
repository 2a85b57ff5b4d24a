"""Runs leaf work on threads: a bounded pool of daemon threads, and the caller's own thread where it would only wait.

The event loop is never blocked. A synchronous context blocks its caller anyway, so it drives a computation on the
caller's thread and lets leaf work run right there: no hand-over, and a debugger and Ctrl-C work as in plain Python.
"""

import asyncio
import contextlib
import contextvars
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

from fedstack.computations.leaf_runtimes import runs_for_others
from fedstack.computations.texts import text_of
from fedstack.errors import ClosedError, LeafError

_T = TypeVar("_T")

# The cores that this process may use; asking each time costs as much as a short computation.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_inline = threading.local()
_serving = threading.local()
_thread_numbers = itertools.count(1)

# Entered by a thread of the pool around each piece of leaf work; contexts put the language's context stack in order
# with it, so that a computation called inside a leaf finds a context.
leaf_environment: contextvars.ContextVar[Callable[[], contextlib.AbstractContextManager[object]]] = (
    contextvars.ContextVar("leaf_environment", default=contextlib.nullcontext)
)


@contextlib.contextmanager
def run_inline(enabled: bool = True) -> Generator[None, None, None]:
    """Lets leaf work run on this thread for the duration of the block."""
    before = getattr(_inline, "enabled", False)
    _inline.enabled = enabled
    try:
        yield
    finally:
        _inline.enabled = before


def runs_inline() -> bool:
    """Tells whether leaf work runs on the current thread."""
    return getattr(_inline, "enabled", False)


@contextlib.contextmanager
def waiting() -> Generator[None, None, None]:
    """Gives the pool that the current thread serves, if any, room for another thread while this one only waits.

    Without it work of a pool that waits for other work of that pool could wait for ever.
    """
    pool: _Pool | None = getattr(_serving, "pool", None)
    if pool is None:
        yield
        return
    pool.set_aside(1)
    try:
        yield
    finally:
        pool.set_aside(-1)


class LeafThreads:
    """A bounded pool of daemon threads for leaf work.

    Threads start when there is work and none is idle, and end after a while without work or at `close()`. They are
    daemons: a leaf that never returns cannot keep the process from ending.

    Args:
      max_threads: The most threads; by default 32, or four per core if that is more.
      idle_seconds: How long a thread waits for work before it ends.
    """

    def __init__(self, max_threads: int | None = None, idle_seconds: float = 10.0) -> None:
        self.max_threads = max_threads or max(32, 4 * CORES)
        self._pool = _Pool(self.max_threads, idle_seconds)
        # Threads refer to the pool only: when nobody refers to this object any more, they end as if it had been closed.
        weakref.finalize(self, self._pool.close).atexit = False

    def submit(self, work: Callable[[], _T]) -> "Future[_T]":
        """Runs `work` on a thread of the pool, in the caller's context variables.

        Raises:
          ClosedError: If the pool is closed.
        """
        future: Future[_T] = Future()
        context = contextvars.copy_context()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = context.run(_in_environment, work)
            except BaseException as error:
                future.set_exception(_contained(error) if context.get(runs_for_others) else error)
            else:
                future.set_result(result)

        self._pool.add(job)
        return future

    async def run(self, work: Callable[[], _T], cancel: Callable[[], None] | None = None) -> _T:
        """Runs `work` without blocking the event loop and returns its result.

        Args:
          work: What to run; on the current thread if that is allowed (`run_inline`), else on one of the pool.
          cancel: Called when the caller is cancelled while the work goes on; it should make the work end early.
        """
        if runs_inline():
            # What the work itself starts, an event loop say, is not this coroutine and has no driver.
            with run_inline(False):
                return work()
        future = self.submit(work)
        waiter = asyncio.wrap_future(future)
        # Who is cancelled just then does not ask what came out, and asyncio would complain.
        waiter.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await waiter
        except asyncio.CancelledError:
            if cancel is not None:
                cancel()
            if not future.cancel():
                # Its thread may never come back.
                pool = self._pool
                pool.set_aside(1)
                future.add_done_callback(lambda _: pool.set_aside(-1))
            raise

    def close(self) -> None:
        """Lets idle threads end; work that has been handed in is done to its end. Idempotent."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"<LeafThreads {self._pool.threads} threads, at most {self.max_threads}>"


class SharedLeafThreads:
    """One pool for several executors, so that its bound is one for all of them. It is open as long as one of them is.

    Args:
      max_threads: As of `LeafThreads`.
    """

    def __init__(self, max_threads: int | None = None) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._users = 0
        self._threads: LeafThreads | None = None

    def lend(self) -> LeafThreads:
        """Returns the pool; whoever gets it gives it back once, and does not close it."""
        with self._lock:
            self._users += 1
            self._threads = self._threads or LeafThreads(self._max_threads)
            return self._threads

    def give_back(self) -> None:
        """Takes note that one user fewer needs the pool."""
        with self._lock:
            self._users -= 1
            if self._users or self._threads is None:
                return
            threads, self._threads = self._threads, None
        threads.close()


class _Pool:
    """The jobs of a `LeafThreads`, and the threads that do them."""

    def __init__(self, max_threads: int, idle_seconds: float) -> None:
        self._max_threads = max_threads
        self._idle_seconds = idle_seconds
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self.threads = 0
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._set_aside = 0

    def _begin_anew_after_fork(self) -> None:
        """Forgets the threads of another process, which are not in this one, and what they were to do."""
        if self._process != os.getpid():
            self._begin()

    def add(self, job: Callable[[], None]) -> None:
        """Takes in a job, and starts a thread for it if none is free."""
        self._begin_anew_after_fork()
        with self._changed:
            if self._closed:
                raise ClosedError("Expected open leaf threads, found them closed; make a new executor")
            self._jobs.append(job)
            self._changed.notify()
        self._start_threads()

    def _start_threads(self) -> None:
        """Starts as many threads as there are jobs that nobody is free for, within the limit."""
        with self._changed:
            room = self._max_threads - (self.threads - self._set_aside)
            missing = max(0, min(len(self._jobs) - self._idle, room))
            self.threads += missing
            self._idle += missing
        for _ in range(missing):
            threading.Thread(target=self._serve, name=f"fedstack-leaf-{next(_thread_numbers)}", daemon=True).start()

    def set_aside(self, threads: int) -> None:
        """Stops counting some threads against the limit, or with a negative number, counts them again."""
        self._begin_anew_after_fork()
        with self._changed:
            self._set_aside += threads
        self._start_threads()

    def _serve(self) -> None:
        _serving.pool = self
        job = self._next_job()
        while job is not None:
            job()
            del job  # an idle thread must not keep the last work's data alive
            with self._changed:
                self._idle += 1
            job = self._next_job()

    def _next_job(self) -> Callable[[], None] | None:
        """Waits for work, on a thread that is counted as idle; `None` means that it is to end, and counts no longer."""
        with self._changed:
            if not self._jobs and not self._closed:
                self._changed.wait_for(lambda: self._jobs or self._closed, self._idle_seconds)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self.threads -= 1
            return None

    def close(self) -> None:
        """Lets idle threads end, and the others after their work."""
        self._begin_anew_after_fork()
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _contained(error: BaseException) -> BaseException:
    """Returns what work for another process raised, as something that cannot end this one: an event loop would end."""
    if isinstance(error, (Exception, asyncio.CancelledError)):
        return error
    contained = LeafError(f"Expected work to return, found that it raised {type(error).__name__}: {text_of(error)}")
    contained.__cause__ = error
    return contained


def _in_environment(work: Callable[[], _T]) -> _T:
    with leaf_environment.get()():
        return work()
