"""After the loss of a worker, decides which calls run again, which values can be rebuilt, and which values to fetch."""

from collections.abc import Iterable

from fedstack.errors import LostWorkersError, WorkerUnavailableError
from fedstack.foundations.error_text import counted
from fedstack.membership.ledger import ENOUGH, SUSPECTED, LossLedger
from fedstack.service.coordinator.calls.closures import Closure, ClosureState, WorkerState

_MOST_NAMED = 5
# The maximum length of a chain of calls that is repeated to rebuild a value.
MOST_DEPTH = 1000


def why_not_again(closure: Closure, error: Exception, ledger: LossLedger) -> Exception | None:
    """Returns the error with which a closure on a lost worker fails, or `None` if the closure is to run again."""
    if not closure.repeatable:
        return _not_repeated(closure, error)
    return _lost_too_often(closure, error, ledger.losses(closure)) if ledger.is_enough(closure) else None


def suspects_in(closures: Iterable[Closure], ledger: LossLedger) -> str:
    """Returns a line to append to an error message. The line names the closures that may have crashed workers.

    Returns an empty string if no closure is suspected.
    """
    losses = [(one.name, count) for one in closures if (count := ledger.losses(one))]
    if not losses:
        return ""
    losses.sort(key=lambda one: -one[1])
    named = ", ".join(f"{name!r} ({counted(count, 'time')})" for name, count in losses[:_MOST_NAMED])
    more = f" and {len(losses) - _MOST_NAMED} more" if len(losses) > _MOST_NAMED else ""
    return f"\n  these calls were running on workers that were lost, and may have caused the losses: {named}{more}"


def lose_values(worker: WorkerState) -> None:
    """Records that a worker no longer has any of its values."""
    for closure in worker.values:
        closure.held.pop(worker, None)
        _note_if_lost(closure)
    worker.values.clear()


def release(closure: Closure) -> None:
    """Lets workers drop an unreferenced value.

    If a value that depends on the dropped value has to be rebuilt later, both values are rebuilt.
    """
    for worker in closure.held:
        worker.values.pop(closure, None)
    closure.held.clear()
    _note_if_lost(closure)


def fetch(closure: Closure, worker: WorkerState) -> None:
    """Requests that a closure's value be fetched from a worker."""
    worker.fetching[closure] = worker.to_fetch[closure] = None


def fetch_if_wanted(closure: Closure) -> None:
    """Requests that a closure's value be fetched if a caller wants it and no fetch has been requested yet."""
    is_wanted = closure.wanted and closure.is_there and closure.copy is None
    if is_wanted and not any(closure in worker.fetching for worker in closure.held):
        fetch(closure, next(iter(closure.held)))


def has_left(worker: WorkerState) -> bool:
    """Returns whether a worker that is about to stop can be released.

    It can be released once no closure runs there and no value has to be fetched. Requests a fetch of each value that
    would be lost with the worker.
    """
    for closure in held_only_by(worker):
        if closure not in worker.fetching and closure not in worker.refused:
            fetch(closure, worker)
    return not worker.running and not worker.fetching


def held_only_by(worker: WorkerState) -> list[Closure]:
    """Returns the closures whose values would be lost if the worker stopped."""
    return [
        closure
        for closure in worker.values
        if closure.copy is None and all(other.draining for other in closure.held if other is not worker)
    ]


def may_be_rebuilt(closure: Closure) -> bool:
    """Returns whether an ended closure runs again if its value is lost but needed."""
    return closure.repeatable and closure.copy is None and closure.depth <= MOST_DEPTH


def is_gone(closure: Closure) -> bool:
    """Returns whether a closure will never have a value: it failed, was cancelled, or lost its value for good."""
    if closure.state is ClosureState.LOST and closure.call is None:
        closure.state, closure.error = ClosureState.FAILED, _not_repeated(closure, None)
    return closure.state in (ClosureState.FAILED, ClosureState.CANCELLED)


def _note_if_lost(closure: Closure) -> None:
    if closure.state is ClosureState.READY and not closure.held and closure.copy is None:
        closure.state = ClosureState.LOST


def _not_repeated(closure: Closure, error: Exception | None) -> WorkerUnavailableError:
    cause = "its worker was lost" if error is None else f"its worker was lost: {error}"
    reason = (
        f"this would repeat a chain of more than {MOST_DEPTH} calls"
        if closure.repeatable
        else "the call was scheduled with repeatable=False"
    )
    return WorkerUnavailableError(
        f"The value of {closure.name!r} is gone, since {cause}. The value cannot be rebuilt: {reason}. Fetch the "
        "values of such calls early, or schedule the calls with prefetch=True"
    )


def _lost_too_often(closure: Closure, error: Exception, losses: int) -> LostWorkersError:
    lost = LostWorkersError(
        f"{losses} workers were lost while they ran {closure.name!r}; the last {ENOUGH - SUSPECTED} of them ran "
        f"nothing else. The call is not retried: {error}"
    )
    lost.__cause__ = error
    return lost
