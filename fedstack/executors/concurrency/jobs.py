"""Defines work for a thread pool, and counts work that continues after it was cancelled."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TypeVar

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import LeafError, ResourceLimitError, WorkerUnavailableError
from fedstack.foundations.error_text import text_of
from fedstack.transport.peers.io_loop import Outcome

_T = TypeVar("_T")


class AbandonedWork:
    """Work that continues after it was cancelled: a Python function cannot be stopped, and keeps its thread.

    Up to a limit, other threads replace those of abandoned work. Beyond the limit they count against the bound of their
    pool, which refuses new work when it has no thread left.

    Args:
      most: The limit.
      refusal: Returns the error for refused work, given the number of abandoned pieces.

    Attributes:
      count: The number of abandoned pieces.
    """

    def __init__(self, most: int, refusal: Callable[[int], Exception]) -> None:
        self.count = 0
        self.refusal = refusal
        self._most = most
        self._replaced = 0
        self._lock = threading.Lock()

    def add(self) -> bool:
        """Counts one more piece; returns whether another thread replaces its own."""
        with self._lock:
            self.count += 1
            is_replaced = self._replaced < self._most
            self._replaced += is_replaced
            return is_replaced

    def remove(self, was_replaced: bool) -> None:
        """Counts one piece less."""
        with self._lock:
            self.count -= 1
            self._replaced -= was_replaced

    def __repr__(self) -> str:
        return f"<AbandonedWork {self.count}, at most {self._most} with threads of their own>"


class Seat:
    """How a pool counts a thread that works for it.

    Attributes:
      waits: How many waits for other work, nested in each other, the thread is in.
      abandoned: Whether the work was given up, so that the thread may never come back.
      is_replaced: Whether another thread may take the place of this one.
      owner: The owner of the work.
    """

    owner = ""
    waits = 0
    abandoned = False
    is_replaced = False


class Job(Outcome[_T], Seat):
    """Work that was submitted to a pool, and its outcome.

    Attributes:
      scope: The scope that it was submitted in.
    """

    def __init__(self, work: Callable[[], _T]) -> None:
        super().__init__()
        self._work = [work]  # the one thread that takes it out either runs or cancels the work
        self.scope = current_scope()
        self.owner = self.scope.owner
        self._context = contextvars.copy_context()

    def run(self) -> None:
        """Does the work, on the current thread."""
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
            del self, work  # the error refers to this frame

    def _taken(self) -> Callable[[], _T] | None:
        try:
            return self._work.pop()
        except IndexError:
            return None

    def cancel(self) -> bool:
        """Cancels the work if it has not begun; returns whether it had not."""
        if self._taken() is None:
            return False
        self.set(None, CancelledError())
        return True

    def running(self) -> bool:
        """Returns whether the work has begun and not ended."""
        return not (self._work or self.done())

    def refuse(self, failure: str) -> None:
        """Fails the work, for which there is no thread.

        Args:
          failure: Why no thread could be started; empty if the pool is full.
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
            "Expected a free thread, found all of them busy with work that was cancelled and has not ended; wait until "
            "it ends, or allow more threads (max_concurrent_clients)"
        )


def _contained(error: BaseException) -> BaseException:
    """Returns an error of work for another process as one that does not stop an event loop of this process."""
    if isinstance(error, (Exception, asyncio.CancelledError)):
        return error
    contained = LeafError(f"Work on a thread raised {type(error).__name__}: {text_of(error)}")
    contained.__cause__ = error
    return contained


def _in_environment(work: Callable[[], _T]) -> _T:
    with current_scope().environment():
        return work()
