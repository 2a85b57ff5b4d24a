"""Work that is handed to a pool of threads, and how the pool counts the thread that does it."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TypeVar

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import LeafError, ResourceLimitError, WorkerUnavailableError
from fedstack.foundations.error_text import text_of
from fedstack.transport.peers.outcomes import Outcome

_T = TypeVar("_T")


class Seat:
    """How a pool counts a thread that is at work for it.

    Attributes:
      waits: How often the thread waits for other work at this moment, one wait inside of another.
      abandoned: Whether nobody wants the work any more, and nobody knows when the thread will come back.
      is_replaced: Whether another thread may take the place of that one.
      owner: Whose work it is.
    """

    owner = ""
    waits = 0
    abandoned = False
    is_replaced = False


class Job(Outcome[_T], Seat):
    """Work that is handed in, and what comes of it.

    Attributes:
      scope: For whom it is done, and how.
    """

    def __init__(self, work: Callable[[], _T]) -> None:
        super().__init__()
        self._work = [work]  # whoever takes it out begins the work, or sees to it that it never begins
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
            self.tell(None, _contained(error) if self.scope.is_contained else error)
        else:
            self.tell(result, None)
        finally:
            del self, work  # an error refers to this frame

    def _taken(self) -> Callable[[], _T] | None:
        try:
            return self._work.pop()
        except IndexError:
            return None

    def cancel(self) -> bool:
        """Sees to it that the work does not begin; returns whether it has not."""
        if self._taken() is None:
            return False
        self.tell(None, CancelledError())
        return True

    def running(self) -> bool:
        """Returns whether the work goes on."""
        return not (self._work or self.done())

    def refuse(self, failure: str) -> None:
        """Fails instead: no thread will come for it.

        Args:
          failure: Why none could be started; empty if there are as many as there may be.
        """
        if self._taken() is not None:
            self.tell(None, self._refusal(failure))

    def _refusal(self, failure: str) -> Exception:
        if failure and self.scope.is_for_others:
            return WorkerUnavailableError(f"{failure}; try again, or at another worker")
        if failure:
            return ResourceLimitError(failure)
        found = self.scope.abandoned
        if found is not None:
            return found.refusal(found.count)
        return ResourceLimitError(
            "Expected a thread for work, found all of them at work that was cancelled and goes on; wait until it ends, "
            "or allow more of it at the same time (max_concurrent_clients)"
        )


def _contained(error: BaseException) -> BaseException:
    """Returns what work for another process raised, as something that cannot end this one: an event loop would end."""
    if isinstance(error, (Exception, asyncio.CancelledError)):
        return error
    contained = LeafError(f"Work on a thread raised {type(error).__name__}: {text_of(error)}")
    contained.__cause__ = error
    return contained


def _in_environment(work: Callable[[], _T]) -> _T:
    with current_scope().environment():
        return work()
