"""Decides how long callers wait for members, what to do during the wait, and which error a failed wait raises."""

from collections.abc import Sequence
from typing import Generic, TypeAlias

import attrs

from fedstack.computations.types.language import RetryableError
from fedstack.errors import AuthenticationError, ClosedError, FedstackError, NoWorkersError
from fedstack.membership.member import HOPELESS, AnyMember, M, MemberState
from fedstack.membership.members import AGAIN_SECONDS, Members
from fedstack.transport.wire.connection_errors import listed

# How long a caller waits for further members after the first, so that members that start together are used together.
_SETTLE_SECONDS = 1.0
# The time limit for the answer of a member that was found again.
_ANSWER_SECONDS = 2.0
# A shorter pause could be a rounding error of the clock, which might not have advanced after it.
_LEAST_PAUSE_SECONDS = 1e-6


@attrs.frozen
class Use(Generic[M]):
    """The decision to use these members: the wait has ended."""

    members: list[M]


@attrs.frozen
class GiveUp:
    """The decision to raise this error: the wait has failed."""

    error: Exception


@attrs.frozen
class Pause:
    """The decision to wait for this many seconds, or until a member changes, and then to decide again."""

    seconds: float


@attrs.frozen
class LookFor(Generic[M]):
    """The decision to check whether these members are back, and to report those members with `Members.returned`."""

    members: Sequence[M]


Decision: TypeAlias = "Use[M] | GiveUp | Pause | LookFor[M]"


class Wait(Generic[M]):
    """The wait of a caller for ready members. It begins when the object is created.

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
        """How long the caller waits for the first ready member, in seconds."""
        return self._seconds

    def decide(self) -> "Decision[M]":
        """Returns the next step of the caller. Call this method again after a `Pause` or `LookFor`."""
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
            # A pause is shorter than the wait, because the end of a process may go unreported.
            return Pause(min(max(left, _LEAST_PAUSE_SECONDS), AGAIN_SECONDS))
        # The known state may be seconds old, and a member that is back must not be reported as away.
        self._has_looked, self._begun, self._patience = True, self._members.clock(), _ANSWER_SECONDS
        settled = {*HOPELESS, MemberState.READY, MemberState.DRAINING}
        return LookFor([w for w in self._members.members if w.state not in settled and not w.supervised])

    def _over(self) -> "Decision[M]":
        ready = self._members.ready
        self._members.waited(in_vain=not ready)
        return Use(ready) if ready else GiveUp(none_ready(self._members.members, self._seconds))


def closed_error() -> ClosedError:
    """Returns the error for callers of a closed membership."""
    return ClosedError("Expected open connections to the workers, found closed ones; create a new context")


def none_ready(workers: Sequence[AnyMember], seconds: float) -> Exception:
    """Returns the error to raise when none of the workers is ready.

    Args:
      workers: All workers.
      seconds: How long the caller has waited.
    """
    if not workers:
        return NoWorkersError(f"Expected at least one worker, found none within {seconds:g} s; add a worker")
    causes = {worker.address: worker.cause_after(seconds) for worker in workers}
    is_single = len(causes) == 1  # the same address may have been passed twice
    mistakes = [w.cause for w in workers if w.cause and not isinstance(w.cause, RetryableError)]
    error: FedstackError
    if not mistakes and all(worker.state is MemberState.GONE for worker in workers):
        ended = "The worker process has" if is_single else f"All {len(causes)} worker processes have"
        error = NoWorkersError(
            f"{ended} ended, likely because of a client function (os._exit, a crash, or lack of memory); fix the "
            "function, and start a new pool:"
            f"{listed(causes)}"
        )
        error.is_final = True
    elif len(mistakes) < len(workers):
        away = (
            "The worker is not ready; start it"
            if is_single
            else f"None of the {len(causes)} workers is ready; start them"
        )
        error = NoWorkersError(
            f"{away} with `fedstack serve`, and test {'it' if is_single else 'one'} with `fedstack check`:"
            f"{listed(causes)}"
        )
    elif len(set(map(str, mistakes))) == 1 or not isinstance(mistakes[0], AuthenticationError):
        return mistakes[0]
    else:
        error = AuthenticationError(
            f"None of the {len(causes)} workers accepts the credentials; check the token and the certificates:"
            f"{listed(causes)}"
        )
    error.causes = causes
    return error
