"""What is queued while closures are assigned."""

from fedstack.service.coordinator.calls.closures import Closure, WorkerState
from fedstack.service.coordinator.queues import Queues


def test_what_is_queued_during_an_assignment_is_assigned_too() -> None:
    """A closure whose argument was lost comes back to the queue of another worker, which had nothing to do before."""
    queues = Queues(1, lambda: 0.0)
    idle, busy = WorkerState(0, "idle"), WorkerState(1, "busy")
    for worker in (idle, busy):
        queues.add_worker(worker)
    argument = Closure("a call", (), name="argument")
    closure = Closure("a call", (argument,), name="closure")  # type: ignore[arg-type]
    queues.add(closure, first=False, at_once=False)

    def can_begin(one: Closure) -> bool:
        if argument.held:
            return True
        argument.held[idle] = "handle"
        queues.add(one, first=False, at_once=False)
        return False

    assert queues.assignments(can_begin) == [(idle, [closure])]
