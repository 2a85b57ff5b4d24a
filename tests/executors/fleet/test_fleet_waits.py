"""How long callers wait for workers, and what ends it."""

import pytest
from fake_fleet import ABLE, AWAY, WRONG, FakeFleet

from fedstack.errors import AuthenticationError, ClosedError, NoWorkersError, ResourceLimitError
from fedstack.executors.fleet.fleet import AGAIN_SECONDS, FULL_SECONDS
from fedstack.executors.fleet.tickets import Ticket, TicketQueue
from fedstack.executors.fleet.waits import GiveUp, LookFor, Pause, Use, Wait


@pytest.fixture
def fleet() -> FakeFleet:
    return FakeFleet()


def test_workers_that_are_all_ready_are_used_at_once(fleet: FakeFleet) -> None:
    workers = [fleet.join(name, ready=True) for name in "ab"]
    assert Wait(fleet).decide() == Use(workers)


def test_the_first_worker_that_is_ready_waits_a_second_for_those_never_heard_of(fleet: FakeFleet) -> None:
    first, second = fleet.join("a", ready=True), fleet.join("b")
    wait = Wait(fleet)
    assert wait.decide() == Pause(AGAIN_SECONDS)
    fleet.time.now += 0.9
    assert wait.decide() == Pause(pytest.approx(0.1))
    fleet.time.now += 0.2
    assert wait.decide() == Use([first])
    wait = Wait(fleet)
    fleet.failed(second, AWAY)
    assert wait.decide() == Use([first])


def test_before_a_wait_ends_in_vain_workers_are_looked_for_once_more(fleet: FakeFleet) -> None:
    away, other, wrong = fleet.join("a"), fleet.join("b"), fleet.join("c")
    fleet.failed(away, AWAY)
    fleet.failed(wrong, WRONG)
    wait = Wait(fleet)
    fleet.time.now += 10.0
    assert wait.decide() == LookFor([away, other])
    fleet.returned(other)
    assert wait.decide() == Pause(AGAIN_SECONDS)
    assert fleet.due() == [away, other, wrong]
    fleet.failed(other, AWAY)
    decision = wait.decide()
    assert isinstance(decision, GiveUp)
    assert decision.error.causes == {
        "a": "nobody listens there",
        "b": "nobody listens there",
        "c": "another token",
    }
    assert fleet.patience() == AGAIN_SECONDS


def test_a_worker_that_is_found_again_has_two_seconds_to_answer(fleet: FakeFleet) -> None:
    worker = fleet.join("a")
    wait = Wait(fleet)
    fleet.time.now += 10.0
    assert wait.decide() == LookFor([worker])
    fleet.returned(worker)
    fleet.time.now += 1.9
    assert wait.decide() == Pause(pytest.approx(0.1))
    fleet.time.now += 0.2
    decision = wait.decide()
    assert isinstance(decision, GiveUp)
    assert decision.error.causes == {"a": "no answer within 10 s"}
    fleet.answered(worker, ABLE)
    assert Wait(fleet).decide() == Use([worker])


def test_nobody_waits_for_workers_that_time_does_not_mend(fleet: FakeFleet) -> None:
    first, second = fleet.join("a"), fleet.join("b")
    wait = Wait(fleet)
    fleet.failed(first, WRONG)
    assert isinstance(wait.decide(), Pause)
    fleet.lost(second, AWAY, for_good=True)
    decision = wait.decide()
    assert isinstance(decision, GiveUp)
    assert isinstance(decision.error, NoWorkersError)
    assert not decision.error.is_final
    fleet.lost(first, AWAY, for_good=True)
    assert Wait(fleet).decide().error.is_final


def test_a_mistake_that_all_workers_share_is_raised_as_it_is(fleet: FakeFleet) -> None:
    for name in "ab":
        fleet.failed(fleet.join(name), WRONG)
    assert Wait(fleet).decide() == GiveUp(WRONG)
    fleet.failed(fleet.join("c"), AuthenticationError("another certificate"))
    error = Wait(fleet).decide().error
    assert str(error).startswith("None of 3 workers lets us in:\n  a: another token")


def test_a_fleet_without_workers_waits_for_one_to_be_added(fleet: FakeFleet) -> None:
    wait = Wait(fleet)
    assert wait.decide() == Pause(AGAIN_SECONDS)
    worker = fleet.join("a", ready=True)
    assert wait.decide() == Use([worker])
    fleet.remove(worker)
    wait = Wait(fleet)
    fleet.time.now += 10.0
    assert wait.decide() == LookFor([])
    assert str(wait.decide().error) == "The fleet had no worker within 10 s; add one"


def test_a_supervised_worker_is_waited_for_but_not_looked_for(fleet: FakeFleet) -> None:
    worker = fleet.join("a", ready=True, supervised=True)
    fleet.lost(worker, AWAY)
    wait = Wait(fleet)
    assert wait.decide() == Pause(AGAIN_SECONDS)
    fleet.returned(worker)
    fleet.time.now += 10.0
    assert wait.decide() == LookFor([])
    assert wait.decide() == Pause(AGAIN_SECONDS)
    fleet.answered(worker, ABLE)
    assert wait.decide() == Use([worker])


def test_a_closed_fleet_is_not_waited_for(fleet: FakeFleet) -> None:
    fleet.join("a", ready=True)
    waits = Wait(fleet), TicketQueue(fleet)
    waits[1].add(Ticket())
    fleet.close()
    assert all(isinstance(wait.decide().error, ClosedError) for wait in waits)
    assert waits[1].grant() == []


def granted(queue: TicketQueue) -> list[str]:
    return [ticket.worker.address for ticket in queue.grant()]


def test_the_least_loaded_worker_is_given_first_and_of_equals_that_which_has_rested_longest(fleet: FakeFleet) -> None:
    for name, capacity in {"a": 1, "b": 2, "c": 1}.items():
        fleet.join(name, ready=True, capacity=capacity)
    queue = TicketQueue(fleet)
    tickets = [Ticket() for _ in range(6)]
    for ticket in tickets:
        queue.add(ticket)
    assert granted(queue) == ["a", "b", "c", "b"]
    assert len(queue) == 2
    queue.release(tickets[2])
    queue.release(tickets[2])
    assert granted(queue) == ["c"]
    assert granted(queue) == []
    for ticket in tickets:
        queue.release(ticket)
    assert [worker.load for worker in fleet.workers] == [0, 0, 0]
    queue.add(Ticket())
    assert granted(queue) == ["a"]


def test_callers_get_workers_in_the_order_in_which_they_came_without_those_who_left(fleet: FakeFleet) -> None:
    fleet.join("a", ready=True)
    queue = TicketQueue(fleet)
    first, second, third = Ticket(), Ticket(), Ticket()
    for ticket in (first, second, third):
        queue.add(ticket)
    assert queue.grant() == [first]
    queue.release(second)
    queue.release(first)
    assert queue.grant() == [third]
    queue.add(second)  # its caller has left before it came
    assert len(queue) == 0


def test_a_preferred_worker_is_given_if_it_is_free_and_another_one_if_not(fleet: FakeFleet) -> None:
    fleet.join("a", ready=True)
    preferred = fleet.join("b", ready=True)
    queue = TicketQueue(fleet)
    for _ in range(2):
        queue.add(Ticket([preferred]))
    assert granted(queue) == ["b", "a"]


def test_a_worker_that_is_lost_while_it_is_given_away_is_given_again_when_it_is_back_and_released(
    fleet: FakeFleet,
) -> None:
    worker = fleet.join("a", ready=True)
    queue = TicketQueue(fleet)
    first, second = Ticket(), Ticket()
    queue.add(first)
    assert queue.grant() == [first]
    queue.add(second)
    fleet.lost(worker, AWAY)
    queue.release(first)
    assert queue.grant() == []
    fleet.answered(worker, ABLE)
    assert queue.grant() == [second]


def test_callers_wait_for_workers_that_are_busy_as_long_as_these_are_ready(fleet: FakeFleet) -> None:
    worker = fleet.join("a", ready=True)
    queue = TicketQueue(fleet)
    assert queue.decide() == Use([])
    queue.add(Ticket())
    queue.add(Ticket())
    queue.grant()
    fleet.time.now += 1000.0
    assert queue.decide() == Pause(AGAIN_SECONDS)
    fleet.lost(worker, AWAY)
    assert queue.decide() == Pause(AGAIN_SECONDS)  # from now on as for any worker that is away
    fleet.time.now += 10.0
    assert queue.decide() == LookFor([worker])
    assert isinstance(queue.decide().error, NoWorkersError)
    (left,) = queue.take_all()
    assert left.worker is None


def test_each_wait_for_a_worker_begins_when_its_first_caller_comes(fleet: FakeFleet) -> None:
    fleet.failed(fleet.join("a"), AWAY)
    queue = TicketQueue(fleet)
    first = Ticket()
    queue.add(first)
    assert queue.decide() == Pause(AGAIN_SECONDS)
    queue.release(first)
    fleet.time.now += 1000.0
    queue.add(Ticket())
    assert queue.decide() == Pause(AGAIN_SECONDS)


def test_workers_without_room_are_given_to_nobody_and_if_all_are_so_it_is_said(fleet: FakeFleet) -> None:
    full, other = fleet.join("full", ready=True), fleet.join("other", ready=True)
    fleet.full(full, ResourceLimitError("no room"))
    queue = TicketQueue(fleet)
    for _ in range(2):
        queue.add(Ticket([full]))
    assert granted(queue) == ["other"]
    assert queue.decide() == Pause(AGAIN_SECONDS)
    fleet.full(other, ResourceLimitError("no room either"))
    assert str(queue.decide().error) == "no room"
    fleet.time.now += FULL_SECONDS
    assert granted(queue) == ["full"]
