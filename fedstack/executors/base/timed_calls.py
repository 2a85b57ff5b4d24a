"""Limits the time of calls of user code, which cannot be stopped.

Each call runs on a second thread, while the caller waits for it no longer than allowed. A call that takes longer keeps
its thread, which is abandoned, and the next call gets another thread. Handing a call over and back takes about 30 µs.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Generator
from typing import Generic, TypeVar, cast

from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads, is_without_threads
from fedstack.executors.concurrency.thread_pool import waiting
from fedstack.executors.survivors.ending import Ending

_T = TypeVar("_T")
_BEGUN = object()


class TooLate(Exception):
    """Raised for a call that takes longer than allowed. Not seen by users."""


class _Caller(Generic[_T]):
    """A thread that makes calls for another thread.

    Args:
      threads: The threads of which it is one.
    """

    def __init__(self, threads: LeafThreads) -> None:
        self._threads = threads
        self._calls: queue.SimpleQueue[Callable[[], _T] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
        self._job: Job[None] = threads.submit(self._serve)
        self._job.add_done_callback(self._ended)
        _, error = self._outcomes.get()  # the time of a call does not include waiting for a thread
        if error is not None:
            raise error

    def _serve(self) -> None:
        self._outcomes.put((_BEGUN, None))
        while (call := self._calls.get()) is not None:
            try:
                outcome = call(), None
            except BaseException as error:
                outcome = None, error
            del call
            self._outcomes.put(outcome)
            del outcome  # a thread that waits must keep no values alive

    def _ended(self, job: Job[None]) -> None:
        """Passes on the error of a job for which there was no thread."""
        error = None if job.cancelled() else job.exception()
        if error is not None:
            self._outcomes.put((None, error))

    def interrupt(self) -> None:
        """Ends the wait for a call. May be called on any thread."""
        self._outcomes.put((None, TooLate()))

    def call(self, call: Callable[[], _T], seconds: float | None) -> _T:
        """Makes a call, and raises `TooLate` if it takes longer than `seconds` or the wait is interrupted."""
        self._calls.put(call)
        try:
            result, error = self._outcomes.get(timeout=seconds)
        except queue.Empty:
            raise TooLate from None
        if error is not None:
            try:
                raise error
            finally:
                del error  # breaks the reference cycle of the error and this frame
        return cast(_T, result)

    def rest(self, *, starts: bool) -> None:
        """Records that the thread has no calls to make for now. Until it has, another thread may take its place."""
        self._threads.set_aside(self._job, waits=starts)

    def close(self) -> None:
        """Lets the thread end after the last call."""
        self._calls.put(None)

    def abandon(self) -> None:
        """Gives the thread up, because the last call may never end."""
        self.close()
        self._threads.give_up(self._job)


class TimedCalls(Generic[_T]):
    """Makes calls for the threads of one phase, each within a time limit.

    Args:
      threads: The threads on which the calls run; `None` to call on the current thread, without a limit.
      seconds: The time limit of each call, in seconds; `None` for no limit.
      ending: Interrupts the calls when it ends; `None` for no interruption. No call is made after that.
    """

    def __init__(self, threads: LeafThreads | None, seconds: float | None, ending: Ending | None = None) -> None:
        self._threads = None if is_without_threads() else threads
        self._seconds = seconds
        self._ending = ending
        self._lock = threading.Lock()
        self._is_closed = False
        self._idle: list[_Caller[_T]] = []
        self._unwatch: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def lent(self) -> Generator[Callable[[Callable[[], _T]], _T], None, None]:
        """Yields a function that makes one call after the other for the current thread.

        The function raises `TooLate` if a call takes too long, and continues to run, and `ResourceLimitError` if too
        many calls that took too long are still running.
        """
        threads = self._threads
        if threads is None:
            yield lambda call: call()
            return
        caller: _Caller[_T] | None = None

        def make(call: Callable[[], _T]) -> _T:
            nonlocal caller
            if caller is None:
                caller = self._taken(threads)
            try:
                return caller.call(call, self._seconds)
            except BaseException as error:
                if isinstance(error, TooLate) or not isinstance(error, Exception):
                    caller.abandon()  # the wait may have been interrupted
                    caller = None
                raise

        with waiting():  # a pool of one thread needs its thread for the calls
            try:
                yield make
            finally:
                if caller is not None:
                    self._give_back(caller)

    def _taken(self, threads: LeafThreads) -> _Caller[_T]:
        with self._lock:
            caller = self._idle.pop() if self._idle else None
        if caller is not None:
            caller.rest(starts=False)
            return caller
        caller = _Caller[_T](threads)
        if self._ending is not None:
            self._unwatch.append(self._ending.watch(caller.interrupt))
        return caller

    def _give_back(self, caller: _Caller[_T]) -> None:
        # Threads without calls must not take the place of those of other phases, which may be needed to end this one.
        caller.rest(starts=True)
        with self._lock:
            if not self._is_closed:
                self._idle.append(caller)
                return
        self._end(caller)

    def _end(self, caller: _Caller[_T]) -> None:
        caller.rest(starts=False)
        caller.close()

    def close(self) -> None:
        """Lets the threads that make no call end. Idempotent."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for caller in idle:
            self._end(caller)
        while self._unwatch:
            self._unwatch.pop()()
