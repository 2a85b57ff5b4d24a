"""Clients that fail at several workers: the first of them is blamed, whichever worker answers first."""

import pytest
from fault_leaves import sum_of_failing_visits
from fault_stacks import Background, Door, context_over, eventually, locally, status_of
from processes import Fleet, WorkerProcess

from fedstack.errors import LeafError

WAITS_AND_FAILS, FAILS, WAITS, WORKS = 2, 1, 0, -1


def has_failed(worker: WorkerProcess) -> bool:
    calls = status_of(worker.target).calls
    return any(call.method.endswith("/RunPhase") and call.code == "UNKNOWN" for call in calls)


def failure_of(running: "Background[object]") -> LeafError:
    with pytest.raises(LeafError) as caught:
        running.result()
    return caught.value


@pytest.mark.parametrize("max_fanout", [2, 100])
def test_the_first_client_that_fails_is_blamed_even_if_a_later_one_fails_sooner(
    fleet: Fleet, door: Door, max_fanout: int
) -> None:
    workers = [fleet.start() for _ in range(3)]
    clients = [(door.port, number) for number in (WORKS, WORKS, WORKS, WAITS_AND_FAILS, WORKS, FAILS)]
    with context_over([worker.target for worker in workers], max_fanout=max_fanout):
        running = Background(lambda: sum_of_failing_visits(clients))
        door.wait_for(running)  # client 3, on whichever worker: those that are idle take over clients
        eventually(lambda: any(map(has_failed, workers)))
        assert not running.ended
        door.open()
        found = failure_of(running)
    assert found.client_index == 3
    assert "ZeroDivisionError: by 2; at client 3" in str(found)
    with pytest.raises(LeafError) as caught:
        locally(sum_of_failing_visits, clients)
    assert str(caught.value) == str(found)


def test_clients_after_one_that_fails_are_not_waited_for(fleet: Fleet, door: Door) -> None:
    workers = [fleet.start(), fleet.start()]
    clients = [(door.port, number) for number in (WORKS, FAILS, WAITS, WAITS)]
    with context_over([worker.target for worker in workers]):
        assert failure_of(Background(lambda: sum_of_failing_visits(clients))).client_index == 1
        eventually(lambda: not any(status_of(worker.target).running for worker in workers))


def test_the_loss_of_a_worker_is_not_kept_back_while_others_run(fleet: Fleet, door: Door, caplog) -> None:
    left, lost = fleet.start(), fleet.start()
    clients = [(door.port, number) for number in (WAITS, WAITS, WAITS, WAITS)]
    with context_over([left.target, lost.target]):
        running = Background(lambda: sum_of_failing_visits(clients))
        door.wait_for(running, left.pid, lost.pid)
        lost.kill()
        eventually(lambda: [r for r in caplog.records if " again" in r.getMessage()])
        assert not running.ended
        door.open()
        assert running.result() == 0


def test_a_client_that_fails_before_a_worker_is_lost_is_asked_again(fleet: Fleet, door: Door, doors) -> None:
    """What clients before it would have said went with the worker."""
    lost, left = fleet.start(), fleet.start()
    gate = doors()
    clients = [(door.port, WAITS_AND_FAILS), (door.port, WORKS), (gate.port, WAITS), (gate.port, WAITS_AND_FAILS)]
    with context_over([lost.target, left.target]):
        running = Background(lambda: sum_of_failing_visits(clients))
        door.wait_for(running, lost.pid)
        gate.open()
        eventually(lambda: has_failed(left))
        lost.kill()
        door.open()
        assert failure_of(running).client_index == 0
