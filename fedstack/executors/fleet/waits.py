"""Decides how long a caller waits for the workers that are ready, and what is done meanwhile."""

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from fedstack.errors import ClosedError
from fedstack.executors.fleet.fleet import AGAIN_SECONDS, Fleet
from fedstack.executors.fleet.no_workers import none_ready
from fedstack.executors.fleet.worker import HOPELESS, State, Worker

# How long the first worker that is ready waits for the others, so that a fleet that comes up together is used together.
_SETTLE_SECONDS = 1.0
# How long a worker that was found again may take to answer.
_ANSWER_SECONDS = 2.0


@attrs.frozen
class Use:
    """The wait is over: these workers are ready."""

    workers: list[Worker]


@attrs.frozen
class GiveUp:
    """The wait was in vain: raise this."""

    error: Exception


@attrs.frozen
class Pause:
    """Look again after so many seconds, or once something has changed."""

    seconds: float


@attrs.frozen
class LookFor:
    """Look whether these workers are there again, and tell the fleet of those that have `returned`."""

    workers: Sequence[Worker]


Decision: TypeAlias = "Use | GiveUp | Pause | LookFor"


class Wait:
    """One caller's wait for the workers that are ready; it begins when this is made.

    Args:
      fleet: The workers.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._seconds = fleet.patience()
        self._patience = self._seconds
        self._begun = fleet.clock()
        self._has_looked = False

    @property
    def seconds(self) -> float:
        """How long the caller waits for the first worker that is ready."""
        return self._seconds

    def decide(self) -> Decision:
        """Returns what to do now; to be called again after a `Pause` or `LookFor`."""
        if self._fleet.closed:
            return GiveUp(closed_error())
        states, is_any_ready = self._fleet.states, self._fleet.number_ready > 0
        patience = min(_SETTLE_SECONDS, self._patience) if is_any_ready else self._patience
        left = patience - (self._fleet.clock() - self._begun)
        is_vain = State.BACK not in states if self._has_looked else states and states <= HOPELESS
        if is_vain or (is_any_ready and (left <= 0 or State.NEW not in states)) or (left <= 0 and self._has_looked):
            return self._over()
        if left > 0:
            # In between too: the end of a process need not be told.
            return Pause(min(left, AGAIN_SECONDS))
        # What is known may be seconds old, and a worker that is there by now is not to be called away.
        self._has_looked, self._begun, self._patience = True, self._fleet.clock(), _ANSWER_SECONDS
        return LookFor(
            [w for w in self._fleet.workers if w.state not in HOPELESS and not w.is_ready and not w.supervised]
        )

    def _over(self) -> Decision:
        ready = self._fleet.ready
        self._fleet.waited(in_vain=not ready)
        return Use(ready) if ready else GiveUp(none_ready(self._fleet.workers, self._seconds))


def closed_error() -> ClosedError:
    """Returns the error for callers of a fleet that was closed."""
    return ClosedError("The connections to these workers are closed; make a new context")
