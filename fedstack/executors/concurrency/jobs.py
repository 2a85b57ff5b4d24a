"""Defines the jobs of a thread pool, and counts work that continues to run after being cancelled."""

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TypeVar

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import LeafError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.concurrency.progress import ReportsWork
from fedstack.foundations.error_text import text_of
from fedstack.transport.peers.io_loop import Outcome
from fedstack.transport.wire.frames import RunningClients

_T = TypeVar("_T")


class AbandonedWork:
    """Counts work that continues to run after being cancelled.

    A running Python function cannot be stopped, so it keeps its thread. Up to a limit, the pool replaces the threads of
    abandoned work. Beyond the limit, these threads count toward the maximum of their pool, and the pool refuses new
    work once all its threads are occupied by abandoned work.

    Args:
      most: The maximum number of threads that are replaced.
      refusal: Returns the error for refused work, given the number of abandoned jobs.

    Attributes:
      count: The number of abandoned jobs.
    """

    def __init__(self, most: int, refusal: Callable[[int], Exception]) -> None:
        self.count = 0
        self.refusal = refusal
        self._most = most
        self._replaced = 0
        self._lock = threading.Lock()
        self._named: weakref.WeakKeyDictionary[ReportsWork, str] = weakref.WeakKeyDictionary()

    def add(self) -> bool:
        """Adds a job to the count, and returns whether another thread may replace the job's thread."""
        with self._lock:
            self.count += 1
            is_replaced = self._replaced < self._most
            self._replaced += is_replaced
            return is_replaced

    def remove(self, was_replaced: bool) -> None:
        """Removes a job from the count.

        Args:
          was_replaced: Whether `add` returned true for the job.
        """
        with self._lock:
            self.count -= 1
            self._replaced -= was_replaced

    def name(self, work: ReportsWork) -> None:
        """Records what abandoned work is, for the current origin. The work has ended when nobody refers to `work`."""
        with self._lock:
            self._named[work] = current_scope().origin

    def named(self) -> list[tuple[RunningClients, str]]:
        """Returns the recorded work, each with its origin."""
        with self._lock:
            found = list(self._named.items())
        return [(one, origin) for work, origin in found for one in work.work()]

    def __repr__(self) -> str:
        return f"<AbandonedWork {self.count}, at most {self._most} with threads of their own>"


class Seat:
    """The state of a thread that runs work for a pool, which determines how the pool counts the thread.

    Attributes:
      waits: The number of nested waits for other work that the thread is currently in.
      abandoned: Whether the work was abandoned, so that the thread may never become available again.
      is_replaced: Whether another thread may replace this one.
      owner: The owner of the work.
    """

    owner = ""
    waits = 0
    abandoned = False
    is_replaced = False


class Job(Outcome[_T], Seat):
    """Work that was submitted to a pool, and its outcome.

    Attributes:
      scope: The scope in which the work was submitted.
    """

    def __init__(self, work: Callable[[], _T]) -> None:
        super().__init__()
        self._work = [work]  # the thread that removes the work from the list either runs or cancels it
        self.scope = current_scope()
        self.owner = self.scope.owner
        self._context = contextvars.copy_context()

    def run(self) -> None:
        """Runs the work on the current thread, unless it was cancelled or has already run."""
        work = self._taken()
        if work is None:
            return
        try:
            result = self._context.run(_in_environment, work)
        except BaseException as error:
            self.set(None, _contained(error) if self.scope.is_contained else error)
        else:
            self.set(result, None)
        finally:
            del self, work  # breaks the reference cycle: the error refers to this frame

    def _taken(self) -> Callable[[], _T] | None:
        try:
            return self._work.pop()
        except IndexError:
            return None

    def cancel(self) -> bool:
        """Cancels the work if it has not started, and returns whether it was cancelled."""
        if self._taken() is None:
            return False
        self.set(None, CancelledError())
        return True

    def running(self) -> bool:
        """Returns whether the work has started but not yet ended."""
        return not (self._work or self.done())

    def refuse(self, failure: str) -> None:
        """Fails the work because no thread is available for it.

        Args:
          failure: The reason why no thread could be started; empty if the pool is full.
        """
        if self._taken() is not None:
            self.set(None, self._refusal(failure))

    def _refusal(self, failure: str) -> Exception:
        if failure and self.scope.is_for_others:
            return WorkerUnavailableError(f"{failure}; try again, or use another worker")
        if failure:
            return ResourceLimitError(failure)
        found = self.scope.abandoned
        if found is not None:
            return found.refusal(found.count)
        return ResourceLimitError(
            "All threads are busy with work that was cancelled but is still running; wait until this work ends, or "
            "allow more threads with max_concurrent_clients"
        )


def _contained(error: BaseException) -> BaseException:
    """Converts an error, raised by work for another process, so that it does not stop this process's event loops.

    `KeyboardInterrupt`, `SystemExit` and similar exceptions become the cause of a `LeafError`.
    """
    if isinstance(error, (Exception, asyncio.CancelledError)):
        return error
    contained = LeafError(f"Work on a thread raised {type(error).__name__}: {text_of(error)}")
    contained.__cause__ = error
    return contained


def _in_environment(work: Callable[[], _T]) -> _T:
    with current_scope().environment():
        return work()
