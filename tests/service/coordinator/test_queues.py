"""What is queued while closures are assigned."""

from fedstack.service.coordinator.calls.closures import Closure, WorkerState
from fedstack.service.coordinator.queues import GATHER_SECONDS, Queues


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


def test_a_closure_whose_time_comes_just_after_a_look_is_not_forgotten() -> None:
    """The clock may go on between the look at what can be assigned and the question when to look again."""
    times = iter([0.0, 0.001, GATHER_SECONDS + 0.001, GATHER_SECONDS + 0.002, GATHER_SECONDS + 0.003])
    queues = Queues(2, lambda: next(times))
    worker = WorkerState(0, "a worker")
    queues.add_worker(worker)
    first, second = Closure("a call", (), name="first"), Closure("a call", (), name="second")
    queues.add(first, first=False, at_once=False)
    assert queues.assignments(lambda one: True) == [(worker, [first])]
    worker.calls = 1
    queues.add(second, first=False, at_once=False)
    assert queues.assignments(lambda one: True) == [], "it waits for others"
    assert queues.seconds_to_assignments() == 0.0
    assert queues.assignments(lambda one: True) == [(worker, [second])]
    assert queues.seconds_to_assignments() is None
