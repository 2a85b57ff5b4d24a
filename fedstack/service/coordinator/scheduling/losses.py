"""What is lost with a worker: which of the calls that it ran run again, and which values can be made again."""

from collections.abc import Iterable

from fedstack.errors import LostWorkersError, WorkerUnavailableError
from fedstack.foundations.error_text import counted
from fedstack.service.coordinator.scheduling.closures import Closure, Place, State

# A closure that has lost so many workers runs without others beside it. So many more are its own fault: that two are
# lost just then for reasons of their own is too rare to see.
_LOSSES_UNTIL_ALONE = 2
_LOSSES_ALONE = 2
_MOST_NAMED = 5
# To rebuild a value, so many calls are repeated one after the other, at most.
MOST_DEPTH = 1000


def runs_alone(closure: Closure) -> bool:
    """Returns whether a closure is suspected to end workers, so that nothing else is to run beside it."""
    return closure.losses >= _LOSSES_UNTIL_ALONE


def why_not_again(closure: Closure, error: Exception) -> Exception | None:
    """Returns the error of a closure that ran at a place which was lost; `None` if it runs again."""
    if not closure.repeatable:
        return _not_repeated(closure, error)
    if closure.losses >= _LOSSES_UNTIL_ALONE + _LOSSES_ALONE:
        return _lost_too_often(closure, error)
    return None


def told_of(closures: Iterable[Closure]) -> str:
    """Returns a line for the end of a message: which closures may have ended workers; empty if none has."""
    suspects = sorted((one for one in closures if one.losses), key=lambda one: -one.losses)
    if not suspects:
        return ""
    named = ", ".join(f"{one.name!r} ({counted(one.losses, 'time')})" for one in suspects[:_MOST_NAMED])
    more = f" and {len(suspects) - _MOST_NAMED} more" if len(suspects) > _MOST_NAMED else ""
    return f"\n  these ran where workers were lost, and may have ended them: {named}{more}"


def lose_values(place: Place) -> None:
    """Notes that a place has none of its values any more."""
    for closure in place.values:
        closure.held.pop(place, None)
        _note_if_lost(closure)
    place.values.clear()


def release(closure: Closure) -> None:
    """Lets places drop a value that nobody refers to. What rebuilds something of it later rebuilds it too."""
    for place in closure.held:
        place.values.pop(closure, None)
    closure.held.clear()
    _note_if_lost(closure)


def may_be_rebuilt(closure: Closure) -> bool:
    """Returns whether a closure that has ended runs again if its value is lost and needed."""
    return closure.repeatable and closure.copy is None and closure.depth <= MOST_DEPTH


def is_gone(closure: Closure) -> bool:
    """Returns whether there is no value, and never will be."""
    if closure.state is State.LOST and closure.call is None:
        closure.state, closure.error = State.FAILED, _not_repeated(closure, None)
    return closure.state in (State.FAILED, State.CANCELLED)


def _note_if_lost(closure: Closure) -> None:
    if closure.state is State.READY and not closure.held and closure.copy is None:
        closure.state = State.LOST


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


def _lost_too_often(closure: Closure, error: Exception) -> LostWorkersError:
    lost = LostWorkersError(
        f"{closure.name!r} ended {closure.losses} workers, the last {_LOSSES_ALONE} while nothing else ran there; it "
        f"is not tried again: {error}"
    )
    lost.__cause__ = error
    return lost
