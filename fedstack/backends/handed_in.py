"""Decides which contributions of workers to a phase count, and records what became of their clients.

Of two runs of the same clients, the first contribution counts. Only if clients have failed on a worker while another
worker that responds is running the same clients does the other contribution count: a client that is done on one of them
is done.
"""

from collections.abc import Callable, Mapping

from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.backends.elastic.early_end import EarlyEnd
from fedstack.backends.elastic.phase_news import PhaseNews
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import FedstackError
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.composing_executor import Contributions
from fedstack.executors.concurrency.progress import PartProgress
from fedstack.executors.survivors.ending import left_out, left_out_among, ranges_of
from fedstack.executors.survivors.tolerance import Tolerance, present_among


class HandedIn:
    """The contributions of the workers to one phase.

    Args:
      assignments: The assignments of the phase.
      contributions: Merges the contributions that count.
      news: Tells what was handed in.
      silent: Returns whether the worker of an assignment did not answer lately.

    Attributes:
      early: Ends the phase early; `None` if the phase waits for all clients.
    """

    def __init__(
        self,
        assignments: Assignments,
        contributions: Contributions,
        news: PhaseNews,
        silent: Callable[[Assignment], bool],
    ) -> None:
        scope = current_scope()
        self._assignments = assignments
        self._contributions = contributions
        self._news = news
        self._silent = silent
        self._progress = scope.progress
        self._tolerance = scope.of(Tolerance)
        ending = None if self._tolerance is None else self._tolerance.ending
        self.early = None if ending is None else EarlyEnd(ending, assignments, self.leave_out)

    def take(self, assignment: Assignment, clients: range, result: PhaseResult, counts: PartProgress | None) -> bool:
        """Adds a contribution that a worker has handed in, if it counts.

        Args:
          assignment: The assignment of the worker.
          clients: The clients of the contribution.
          result: The contribution.
          counts: Counts the clients of the assignment; `None` if nobody counts.

        Returns:
          Whether the phase may have something to do.
        """
        failed = result.failures or result.again
        if failed and self._assignments.left_to_others(assignment, clients, lambda other: not self._silent(other)):
            return True
        if not self._assignments.handed_in(assignment, clients):
            return False
        self._contributions.add(clients, result, str(assignment.worker))
        if assignment.left:
            self._news.handed_in(clients, assignment.worker)
        unfinished = left_out_among(result.again)
        for some in ranges_of(sorted(unfinished)):  # held, if a task has ended by itself
            self._assignments.wait(some, is_held=self.early is None or not self.early.is_asking)
        for some in ranges_of(sorted(result.again.keys() - unfinished)):
            self._assignments.again(assignment, some)
        if counts is not None:
            counts.withdrawn(0, 0, len(result.again))
            ended = present_among(clients) - len(result.again)
            counts.settled(ended, len(result.failures))
            if self.early is not None:
                self.early.contributed(ended - len(result.failures))
        return bool(result.again) or (counts is not None and self.early is not None)

    def leave_out(self, clients: range) -> None:
        """Adds clients that are late."""
        absent = set(() if self._tolerance is None else self._tolerance.absent_in(clients))
        self.skip(clients, {client: left_out(client) for client in clients if client not in absent})

    def skip(self, clients: range, errors: Mapping[int, FedstackError]) -> None:
        """Adds clients that no worker has run to their end, with the errors of those that were present."""
        self._contributions.skip(clients, errors)
        if self._progress is not None:
            self._progress.started(len(errors))
            self._progress.failed(len(errors))

    def close(self) -> None:
        """Breaks the reference cycles of this object. No contribution counts any more."""
        self.early, self._silent = None, bool

    def __repr__(self) -> str:
        return f"<HandedIn of {self._assignments!r}>"
