"""Handles lost workers: which calls run again, which values can be rebuilt, and which are fetched."""

from collections.abc import Iterable

from fedstack.errors import LostWorkersError, WorkerUnavailableError
from fedstack.foundations.error_text import counted
from fedstack.membership.ledger import ENOUGH, SUSPECTED, LossLedger
from fedstack.service.coordinator.calls.closures import Closure, ClosureState, WorkerState

_MOST_NAMED = 5
# The most calls that are repeated one after another to rebuild a value.
MOST_DEPTH = 1000


def why_not_again(closure: Closure, error: Exception, ledger: LossLedger) -> Exception | None:
    """Returns the error of a closure that was running at a lost worker; `None` if it runs again."""
    if not closure.repeatable:
        return _not_repeated(closure, error)
    return _lost_too_often(closure, error, ledger.losses(closure)) if ledger.is_enough(closure) else None


def suspects_in(closures: Iterable[Closure], ledger: LossLedger) -> str:
    """Returns a line for the end of a message: the closures that may have ended workers; empty if there are none."""
    losses = [(one.name, count) for one in closures if (count := ledger.losses(one))]
    if not losses:
        return ""
    losses.sort(key=lambda one: -one[1])
    named = ", ".join(f"{name!r} ({counted(count, 'time')})" for name, count in losses[:_MOST_NAMED])
    more = f" and {len(losses) - _MOST_NAMED} more" if len(losses) > _MOST_NAMED else ""
    return f"\n  these ran where workers were lost, and may have ended them: {named}{more}"


def lose_values(worker: WorkerState) -> None:
    """Records that a worker no longer has any of its values."""
    for closure in worker.values:
        closure.held.pop(worker, None)
        _note_if_lost(closure)
    worker.values.clear()


def release(closure: Closure) -> None:
    """Lets workers drop an unreferenced value. Rebuilding a value that depends on it later rebuilds it too."""
    for worker in closure.held:
        worker.values.pop(closure, None)
    closure.held.clear()
    _note_if_lost(closure)


def fetch(closure: Closure, worker: WorkerState) -> None:
    """Requests a fetch of a closure's value from a worker."""
    worker.fetching[closure] = worker.to_fetch[closure] = None


def fetch_if_wanted(closure: Closure) -> None:
    """Requests a fetch of a value that a caller wants, once."""
    is_wanted = closure.wanted and closure.is_there and closure.copy is None
    if is_wanted and not any(closure in worker.fetching for worker in closure.held):
        fetch(closure, next(iter(closure.held)))


def has_left(worker: WorkerState) -> bool:
    """Returns whether a worker that is about to stop has no more useful values; otherwise requests a fetch of them."""
    for closure in held_only_by(worker):
        if closure not in worker.fetching and closure not in worker.refused:
            fetch(closure, worker)
    return not worker.running and not worker.fetching


def held_only_by(worker: WorkerState) -> list[Closure]:
    """Returns the closures whose values would be lost with a worker."""
    return [
        closure
        for closure in worker.values
        if closure.copy is None and all(other.draining for other in closure.held if other is not worker)
    ]


def may_be_rebuilt(closure: Closure) -> bool:
    """Returns whether an ended closure runs again if its value is lost and needed."""
    return closure.repeatable and closure.copy is None and closure.depth <= MOST_DEPTH


def is_gone(closure: Closure) -> bool:
    """Returns whether there is no value and never will be."""
    if closure.state is ClosureState.LOST and closure.call is None:
        closure.state, closure.error = ClosureState.FAILED, _not_repeated(closure, None)
    return closure.state in (ClosureState.FAILED, ClosureState.CANCELLED)


def _note_if_lost(closure: Closure) -> None:
    if closure.state is ClosureState.READY and not closure.held and closure.copy is None:
        closure.state = ClosureState.LOST


def _not_repeated(closure: Closure, error: Exception | None) -> WorkerUnavailableError:
    cause = "its worker was lost" if error is None else f"its worker was lost: {error}"
    reason = (
        f"more than {MOST_DEPTH} calls would have to be repeated for it, one after the other"
        if closure.repeatable
        else "it was scheduled with repeatable=False"
    )
    return WorkerUnavailableError(
        f"The value of {closure.name!r} is gone, since {cause}; it cannot be rebuilt: {reason}. Fetch such values, or "
        "schedule them with prefetch=True"
    )


def _lost_too_often(closure: Closure, error: Exception, losses: int) -> LostWorkersError:
    lost = LostWorkersError(
        f"{closure.name!r} ended {losses} workers, the last {ENOUGH - SUSPECTED} while nothing else ran there; it "
        f"is not tried again: {error}"
    )
    lost.__cause__ = error
    return lost
