"""Limits the time of calls of user code, which cannot be stopped.

Each call runs on a second thread, while the caller waits for it no longer than allowed. A call that takes longer keeps
its thread, which is abandoned, and the next call gets another thread. Handing a call over and back takes about 30 µs.
"""

import queue
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads, is_without_threads
from fedstack.executors.concurrency.thread_pool import waiting

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

    def call(self, call: Callable[[], _T], seconds: float) -> _T:
        """Makes a call, and raises `TooLate` if it takes longer than `seconds`."""
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

    def close(self) -> None:
        """Lets the thread end after the last call."""
        self._calls.put(None)

    def abandon(self) -> None:
        """Gives the thread up, because the last call may never end."""
        self.close()
        self._threads.give_up(self._job)


class TimedCalls(Generic[_T]):
    """Makes one call after the other, each within a time limit. A context manager, used by one thread.

    Args:
      threads: The threads on which the calls run; `None` to call on the current thread, without a limit.
      seconds: The time limit of each call, in seconds.
    """

    def __init__(self, threads: LeafThreads | None, seconds: float) -> None:
        self._threads = None if is_without_threads() else threads
        self._seconds = seconds
        self._caller: _Caller[_T] | None = None
        self._waiting = waiting()

    def __enter__(self) -> "TimedCalls[_T]":
        self._waiting.__enter__()  # a pool of one thread needs its thread for the calls
        return self

    def __exit__(self, *error: object) -> None:
        self._waiting.__exit__(None, None, None)
        if self._caller is not None:
            if error[0] is None:
                self._caller.close()
            else:
                self._caller.abandon()  # the wait may have been interrupted
            self._caller = None

    def call(self, call: Callable[[], _T]) -> _T:
        """Makes a call.

        Raises:
          TooLate: If the call takes too long. It continues to run.
          ResourceLimitError: If too many calls that took too long are still running.
        """
        if self._threads is None:
            return call()
        if self._caller is None:
            self._caller = _Caller(self._threads)
        try:
            return self._caller.call(call, self._seconds)
        except TooLate:
            self._caller.abandon()
            self._caller = None
            raise
