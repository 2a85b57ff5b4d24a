"""Ends a phase before all of its clients are done, once enough are: a state machine without clocks, tasks or sockets.

What workers have handed in counts, and what they have finished by then. When enough clients are said to be done, each
worker is therefore asked to end now, and has a moment to answer. Its answer leaves out the clients that are not done.
If enough clients have then been handed in, all others are late: those that wait, those that were left out, and those of
workers that have not answered. If not, because a worker was lost, the phase goes on with all of these clients.

If clients run on two workers, only the worker that has done more of them is asked, so that what becomes of them comes
from one worker.
"""

from collections.abc import Callable, Sequence

from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.executors.concurrency.progress import PartProgress
from fedstack.executors.survivors.ending import Ending

# The time within which workers answer that are asked to end a phase.
_ANSWER_SECONDS = 2.0
# The time after which they are asked again, if too few of their clients were done.
_AGAIN_SECONDS = 2.0


class EarlyEnd:
    """Ends one phase early. Not thread-safe.

    Args:
      ending: The number of clients that are enough, and whether the phase is over.
      assignments: The assignments of the phase.
      late: Called with clients that are late.
    """

    def __init__(self, ending: Ending, assignments: Assignments, late: Callable[[range], None]) -> None:
        self._ending = ending
        self._assignments = assignments
        self._late = late
        self._counts: dict[Assignment, PartProgress] = {}
        self._enough = ending.enough or 0
        self._contributed = 0
        self._asked: dict[Assignment, None] = {}
        self._until: float | None = None
        self._again_at: float | None = None

    @property
    def is_asking(self) -> bool:
        """Whether workers have been asked to end, and may still answer. No further clients begin meanwhile."""
        return self._until is not None

    @property
    def is_over(self) -> bool:
        """Whether the phase has ended."""
        return self._ending.is_over

    @property
    def wakes_at(self) -> float | None:
        """The time at which `turn` may have something to do without news; `None` if there is none."""
        return self._until if self._again_at is None else self._again_at

    def begun(self, assignment: Assignment, counts: PartProgress) -> None:
        """Records that a worker runs an assignment, and where its clients are counted."""
        self._counts[assignment] = counts

    def contributed(self, clients: int) -> None:
        """Records that a worker has handed in the contribution of some clients that are done."""
        self._contributed += clients

    def no_answer(self, assignment: Assignment) -> None:
        """Records that a worker cannot say which of its clients are done."""
        self._asked.pop(assignment, None)

    def turn(self, now: float, silent: Callable[[Assignment], bool]) -> Sequence[Assignment]:
        """Ends the phase if it is time, and returns the assignments whose workers are to be asked to end now.

        Args:
          now: The time, in seconds.
          silent: Returns whether the worker of an assignment did not answer lately.
        """
        running = self._assignments.running
        if self._again_at is not None and now < self._again_at:
            return ()
        self._again_at = None
        if self._until is None and self._contributed + sum(map(self._done, running)) < self._enough:
            return ()
        if self._until is None:
            self._assignments.keep_one_copy(lambda one: (not silent(one), self._done(one)))
            self._until, self._asked = now + _ANSWER_SECONDS, dict.fromkeys(running)
            for one in running:
                one.is_shared = True  # it may end without clients that it has not begun
            if running:
                return list(running)
        if now < self._until and any(one in running for one in self._asked):
            return ()
        self._until = None
        if self._contributed < self._enough:
            self._again_at = now + _AGAIN_SECONDS
            return ()
        self._ending.end()
        for one in list(running):
            for clients in list(one.left):
                self._assignments.skip(clients)
                self._late(clients)
        for clients in self._assignments.dismiss():
            self._late(clients)
        return ()

    def _done(self, assignment: Assignment) -> int:
        """Returns the number of clients that are said to be done, and have not been handed in."""
        counts = self._counts.get(assignment)
        return 0 if counts is None else min(max(0, counts.done), assignment.size)

    def __repr__(self) -> str:
        return f"<EarlyEnd by {self._ending!r}>"
