"""Tells users, observers and progress displays which clients of a phase were lost, handed in or taken over."""

import logging
from collections.abc import Hashable

from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.balance import TakenOver
from fedstack.computations.leaves.work_scope import ClientCounter
from fedstack.membership.ledger import named
from fedstack.observe.client_events import ClientsHandedIn, ClientsRetried, ClientsTakenOver
from fedstack.observe.events import Span
from fedstack.observe.observers import observers

_logger = logging.getLogger(__name__)
# A shorter pause is not worth a word.
_LEAST_SECONDS = 0.01


class PhaseNews:
    """The news of one phase.

    Args:
      span: The span of the phase.
      progress: Counts the clients that run elsewhere; `None` if nobody counts.
    """

    def __init__(self, span: Span, progress: ClientCounter | None) -> None:
        self._span = span
        self._progress = progress
        self._logged = ""

    def lost(self, assignment: Assignment, error: Exception, pause: float) -> None:
        """Tells that the clients of a lost worker run again after a pause."""
        first, count = assignment.left[0].start, sum(map(len, assignment.left))
        # The error is logged as text, because a stored log record must not keep the error's frames alive.
        found, worker = f"{type(error).__name__}: {error}", str(assignment.worker)
        _logger.warning(
            "Running %s again%s, after %s",
            ", ".join(map(named, assignment.left)),
            f" in {pause:.2f} s" if pause >= _LEAST_SECONDS else "",
            "the same error" if found == self._logged else found if worker in found else f"{found} (from {worker})",
        )
        self._logged = found
        if self._progress is not None:
            self._progress.elsewhere(lost=count)
        if observers.present:
            observers.tell(
                ClientsRetried(
                    **self._span.ids,
                    worker=str(assignment.worker),
                    first_client=first,
                    clients=count,
                    attempt=assignment.losses + 1,
                    pause=pause,
                    error=type(error).__name__,
                )
            )

    def handed_in(self, clients: range, worker: Hashable) -> None:
        """Tells that a worker has handed in what some of its clients have contributed."""
        if observers.present:
            ids, first, count = self._span.ids, clients.start, len(clients)
            observers.tell(ClientsHandedIn(**ids, worker=str(worker), first_client=first, clients=count))

    def taken_over(self, one: TakenOver) -> None:
        """Tells that a worker has taken over clients of another one."""
        _logger.info("%s", one)
        count = len(one.clients)
        if self._progress is not None:
            self._progress.elsewhere(moved=0 if one.runs_twice else count, twice=count if one.runs_twice else 0)
        if observers.present:
            observers.tell(
                ClientsTakenOver(
                    **self._span.ids,
                    worker=str(one.worker),
                    by="" if one.by is None else str(one.by),
                    first_client=one.clients.start,
                    clients=count,
                    runs_twice=one.runs_twice,
                )
            )
