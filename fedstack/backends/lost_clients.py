"""Decides how the clients of lost workers run again: as before, in child processes, or after a search.

If nothing suggests that a client has ended its worker, the clients just run again. Otherwise they run in child
processes of the workers, if the workers can do this, and if nobody would restart them or failures are tolerated. In all
other cases, clients that two lost workers had wait until a search has found the client that ends workers, or none.
"""

import asyncio
import logging
from collections.abc import Callable

from fedstack.backends.backend import Backend, Caller
from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.backends.elastic.phase_news import PhaseNews
from fedstack.backends.task_phases import PhaseAtClients
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import FedstackError, LeafError, NoWorkersError
from fedstack.executors.composing_executor import LOSSES, Contributions
from fedstack.executors.concurrency.coroutines import wait
from fedstack.executors.concurrency.phase_records import note_losses
from fedstack.executors.concurrency.repetition import repeated
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.foundations.error_text import counted
from fedstack.foundations.traceback_filter import without_frames
from fedstack.membership.ledger import InvocationLosses

_logger = logging.getLogger(__name__)
# The system reports the exit status of a process shortly after its connections have broken.
_REAPED_SECONDS = 0.05


class LostClients:
    """The clients of one phase whose workers were lost.

    Args:
      backend: The backend with the workers.
      caller: The settings of the caller.
      part: The phase, with all clients.
      assignments: The assignments of the phase.
      contributions: What the clients have contributed.
      news: Tells which clients run again.
      recall: Asks all workers for the clients that they have not begun.

    Attributes:
      begun_with: The number of workers with which the phase has begun.
      is_guarded: Whether the clients that are left run in child processes.
    """

    def __init__(
        self,
        backend: Backend,
        caller: Caller,
        part: PhaseAtClients,
        assignments: Assignments,
        contributions: Contributions,
        news: PhaseNews,
        recall: Callable[[], None],
    ) -> None:
        scope = current_scope()
        self._backend = backend
        self._caller = caller
        self._part = part
        self._assignments = assignments
        self._contributions = contributions
        self._news = news
        self._recall = recall
        self._losses: InvocationLosses | None = scope.losses
        self._tolerance = scope.of(Tolerance)
        self._must_search = False
        self.begun_with = 0
        self.is_guarded = False

    async def run_again(self, assignment: Assignment, error: Exception) -> bool:
        """Lets the clients of a lost worker run again, and returns whether the retry policy allows it.

        Args:
          assignment: The assignment of the worker.
          error: The error of the loss.
        """
        if not assignment.left:  # everything has been handed in, or runs on other workers
            without_frames(error)
            self._assignments.lost(assignment, 0.0)
            return True
        losses = self._losses
        pause = None if losses is None else losses.pause(assignment.losses + 1)
        if losses is not None and isinstance(error, FedstackError):
            losses.causes.update(error.causes)
        if losses is None or pause is None or (isinstance(error, NoWorkersError) and error.is_final):
            return False
        self._news.lost(assignment, error, pause)
        without_frames(error)
        self._assignments.lost(assignment, asyncio.get_running_loop().time() + pause)
        if self.is_guarded:
            return True
        if await self._must_guard(losses):
            self.is_guarded = True
            note_losses(self._part.phase)
            _logger.info(
                "Clients may have ended %s; the clients that are left run in child processes of the other workers",
                counted(losses.count(self._part.phase), "worker"),
            )
            self._assignments.release()
            self._recall()
        else:
            self.suspect()
        return True

    async def _must_guard(self, losses: InvocationLosses) -> bool:
        """Returns whether the workers must be protected from the clients that are left.

        If failures are tolerated, a client that ends its process is one, and must not end further workers. Otherwise,
        workers are protected that nobody would restart.
        """
        phase, backend = self._part.phase, self._backend
        if not backend.searches_apart or not losses.count(phase):
            return False
        if self._tolerance is None:
            return self.begun_with > 1 and backend.guarding() > 0
        await wait(_REAPED_SECONDS)  # the exit status of a process of a pool tells whether it was killed from outside
        return losses.count(phase) > 0

    def suspect(self) -> bool:
        """Keeps suspected clients waiting for a search, and returns whether there are any.

        All clients wait if the search ends workers.
        """
        suspects = [] if self._losses is None else [some.clients for some in self._losses.suspects(self._part.phase)]
        if suspects:
            self._assignments.hold(suspects if self._backend.searches_apart else [self._part.clients])
            self._must_search = True
        return bool(suspects)

    def must_search(self) -> bool:
        """Returns whether a search has to begin now. The answer is yes once for each search."""
        begins = self._must_search and (self._backend.searches_apart or self._assignments.is_idle)
        self._must_search = self._must_search and not begins
        return begins

    async def search(self) -> None:
        """Searches the suspected clients for one that ends its worker, and lets all clients run if there is none."""
        losses, phase = self._losses, self._part.phase
        assert losses is not None, "suspects are found in the losses"
        work = lambda: self._backend.search(self._part, losses.suspects(phase), self._caller)  # noqa: E731
        try:
            searched = await repeated(work, losses, "Searching", LOSSES)
        except LeafError as error:
            client = error.client_index
            if self._tolerance is None or client is None:
                raise
            searched = True
            workers = [worker for some in losses.suspects(phase) if client in some.clients for worker in some.workers]
            # It has ended several workers; the outcome has the last one.
            self._contributions.skip(
                range(client, client + 1), {client: without_frames(error)}, str(workers[-1]) if workers else ""
            )
            self._assignments.skip(range(client, client + 1))
            self._assignments.forgive()
        if searched:
            losses.forget(phase)
        self._assignments.release()
