"""Decides how long callers wait for members, what happens meanwhile, and which error a failed wait raises."""

from collections.abc import Sequence
from typing import Generic, TypeAlias

import attrs

from fedstack.computations.types.language import RetryableError
from fedstack.errors import AuthenticationError, ClosedError, FedstackError, NoWorkersError
from fedstack.membership.member import HOPELESS, AnyMember, M, MemberState
from fedstack.membership.members import AGAIN_SECONDS, Members
from fedstack.transport.wire.connection_errors import listed

# How long the first ready member waits for the others, so that members that start together are used together.
_SETTLE_SECONDS = 1.0
# How long a member that was found again may take to answer.
_ANSWER_SECONDS = 2.0


@attrs.frozen
class Use(Generic[M]):
    """The wait is over: these members are ready."""

    members: list[M]


@attrs.frozen
class GiveUp:
    """The wait has failed: raise this error."""

    error: Exception


@attrs.frozen
class Pause:
    """Decide again after this many seconds, or once something has changed."""

    seconds: float


@attrs.frozen
class LookFor(Generic[M]):
    """Check whether these members are back, and record those that have `returned`."""

    members: Sequence[M]


Decision: TypeAlias = "Use[M] | GiveUp | Pause | LookFor[M]"


class Wait(Generic[M]):
    """A caller's wait for ready members; it begins when this is created.

    Args:
      members: The members.
    """

    def __init__(self, members: Members[M]) -> None:
        self._members = members
        self._seconds = members.patience()
        self._patience = self._seconds
        self._begun = members.clock()
        self._has_looked = False

    @property
    def seconds(self) -> float:
        """How long the caller waits for the first ready member."""
        return self._seconds

    def decide(self) -> "Decision[M]":
        """Returns what to do now; call it again after a `Pause` or `LookFor`."""
        if self._members.closed:
            return GiveUp(closed_error())
        states, is_any_ready = self._members.states, self._members.number_ready > 0
        patience = min(_SETTLE_SECONDS, self._patience) if is_any_ready else self._patience
        left = patience - (self._members.clock() - self._begun)
        is_vain = MemberState.BACK not in states if self._has_looked else states and states <= HOPELESS
        is_settled = is_any_ready and (left <= 0 or MemberState.NEW not in states)
        if is_vain or is_settled or (left <= 0 and self._has_looked):
            return self._over()
        if left > 0:
            # In between too: the end of a process may go unreported.
            return Pause(min(left, AGAIN_SECONDS))
        # The known state may be seconds old, and a member that is back by now must not be reported as away.
        self._has_looked, self._begun, self._patience = True, self._members.clock(), _ANSWER_SECONDS
        settled = {*HOPELESS, MemberState.READY, MemberState.DRAINING}
        return LookFor([w for w in self._members.members if w.state not in settled and not w.supervised])

    def _over(self) -> "Decision[M]":
        ready = self._members.ready
        self._members.waited(in_vain=not ready)
        return Use(ready) if ready else GiveUp(none_ready(self._members.members, self._seconds))


def closed_error() -> ClosedError:
    """Returns the error for callers of a closed membership."""
    return ClosedError("The connections to these workers are closed; create a new context")


def none_ready(workers: Sequence[AnyMember], seconds: float) -> Exception:
    """Returns the error to raise when none of the workers is ready.

    Args:
      workers: All workers.
      seconds: How long the caller has waited.
    """
    if not workers:
        return NoWorkersError(f"The fleet had no worker within {seconds:g} s; add one")
    causes = {worker.address: worker.cause_after(seconds) for worker in workers}
    is_single = len(causes) == 1  # the same address may have been given twice
    mistakes = [w.cause for w in workers if w.cause and not isinstance(w.cause, RetryableError)]
    error: FedstackError
    if not mistakes and all(worker.state is MemberState.GONE for worker in workers):
        ended = "The worker process has" if is_single else f"All {len(causes)} worker processes have"
        error = NoWorkersError(
            f"{ended} ended, likely because of a client function (os._exit, a crash, too much memory); fix that, and "
            "start a new pool:"
            f"{listed(causes)}"
        )
        error.is_final = True
    elif len(mistakes) < len(workers):
        away = (
            "The worker is not ready; start it" if is_single else f"None of {len(causes)} workers is ready; start them"
        )
        error = NoWorkersError(
            f"{away} with `fedstack serve`, and ask {'it' if is_single else 'one'} with `fedstack check`:"
            f"{listed(causes)}"
        )
    elif len(set(map(str, mistakes))) == 1 or not isinstance(mistakes[0], AuthenticationError):
        return mistakes[0]
    else:
        error = AuthenticationError(f"None of {len(causes)} workers lets us in:{listed(causes)}")
    error.causes = causes
    return error
