"""Which workers a fleet calls ready, which it has asked again, and when."""

import pytest
from fake_fleet import ABLE, AWAY, WRONG, FakeFleet

from fedstack.errors import ResourceLimitError
from fedstack.executors.fleet.fleet import AGAIN_SECONDS, FIRST_PAUSE, FULL_SECONDS, LONGEST_PAUSE
from fedstack.executors.fleet.worker import Features, State

FULL = ResourceLimitError("no room")


@pytest.fixture
def fleet() -> FakeFleet:
    return FakeFleet()


def test_a_worker_that_has_answered_is_ready_and_not_asked_again(fleet: FakeFleet) -> None:
    worker = fleet.join("a")
    assert fleet.ready == []
    fleet.answered(worker, Features(phases=True, searches=True))
    assert fleet.ready == [worker]
    assert worker.features.searches
    assert fleet.seconds_to_due() is None
    assert fleet.changes() == [("a", "READY")]


def test_a_worker_is_asked_by_one_at_a_time(fleet: FakeFleet) -> None:
    worker = fleet.join("a")
    fleet.lost(worker, AWAY)
    fleet.time.now += 100.0
    assert fleet.due() == []
    fleet.failed(worker, AWAY)
    fleet.time.now += 100.0
    assert fleet.due() == [worker]


def test_pauses_between_attempts_grow_up_to_a_bound_and_begin_anew_after_an_answer(fleet: FakeFleet) -> None:
    worker = fleet.join("a")

    def pauses(count: int) -> list[float]:
        found = []
        for _ in range(count):
            fleet.failed(worker, AWAY)
            seconds = fleet.seconds_to_due()
            fleet.time.now += seconds
            found.append(round(seconds, 6))
            assert fleet.due() == [worker]
        return found

    growing = [FIRST_PAUSE, 0.2, 0.4, 0.8, 1.6, LONGEST_PAUSE, LONGEST_PAUSE]
    assert pauses(7) == growing
    fleet.answered(worker, ABLE)
    fleet.lost(worker, AWAY)
    assert fleet.due() == [worker]
    assert pauses(2) == growing[:2]


def test_a_loss_is_told_once_however_often_it_is_found_out(fleet: FakeFleet) -> None:
    worker = fleet.join("a", ready=True)
    fleet.take_changes()
    fleet.lost(worker, AWAY)
    fleet.lost(worker, AWAY)
    fleet.due()
    fleet.failed(worker, AWAY)
    assert fleet.changes() == [("a", "AWAY")]
    fleet.answered(worker, ABLE)
    fleet.lost(worker, AWAY)
    assert fleet.changes() == [("a", "READY"), ("a", "AWAY")]


def test_a_worker_that_refuses_us_is_asked_on_and_one_that_is_gone_is_not(fleet: FakeFleet) -> None:
    refusing, gone = fleet.join("refusing"), fleet.join("gone")
    fleet.failed(refusing, WRONG)
    fleet.lost(gone, AWAY, for_good=True)
    assert (refusing.state, gone.state) == (State.WRONG, State.GONE)
    fleet.time.now += LONGEST_PAUSE
    assert fleet.due() == [refusing]
    fleet.answered(gone, ABLE)  # what was sent before its end
    fleet.answered(refusing, ABLE)
    assert fleet.ready == [refusing]


def test_a_worker_that_is_said_to_be_back_is_asked_at_once_whatever_was_known_of_it(fleet: FakeFleet) -> None:
    in_pause, being_asked, gone = fleet.join("a"), fleet.join("b"), fleet.join("c")
    fleet.failed(in_pause, AWAY)
    fleet.lost(gone, AWAY, for_good=True)
    for worker in fleet.workers:
        fleet.returned(worker)
        fleet.returned(worker)
    assert not being_asked.asking  # in vain perhaps
    assert fleet.due() == [in_pause, being_asked, gone]
    assert fleet.due() == []
    fleet.answered(gone, ABLE)
    assert fleet.ready == [gone]


def test_a_supervised_worker_that_is_lost_is_not_asked_until_it_is_said_to_be_back(fleet: FakeFleet) -> None:
    worker = fleet.join("a", ready=True, supervised=True)
    fleet.lost(worker, AWAY)
    fleet.time.now += 1000.0
    assert (fleet.due(), fleet.seconds_to_due()) == ([], None)
    fleet.returned(worker)
    assert fleet.due() == [worker]
    fleet.lost(worker, AWAY)
    fleet.failed(worker, AWAY)  # the attempt that the loss has ended
    assert fleet.seconds_to_due() is None


def test_a_removed_worker_is_as_if_it_had_never_been(fleet: FakeFleet) -> None:
    kept, removed = fleet.join("kept", ready=True), fleet.join("removed", ready=True)
    fleet.take_changes()
    fleet.remove(removed)
    fleet.answered(removed, ABLE)
    fleet.lost(removed, AWAY)
    fleet.returned(removed)
    assert (fleet.workers, fleet.ready, fleet.due()) == ((kept,), [kept], [])
    assert fleet.changes() == [("removed", "REMOVED")]


def test_a_closed_fleet_asks_nobody(fleet: FakeFleet) -> None:
    asked, lost = fleet.join("asked"), fleet.join("lost", ready=True)
    fleet.close()
    fleet.failed(asked, AWAY)
    fleet.lost(lost, AWAY)
    fleet.returned(asked)
    fleet.time.now += 1000.0
    assert fleet.due() == []
    assert not asked.asking


def test_a_worker_that_had_no_room_counts_as_full_for_a_while(fleet: FakeFleet) -> None:
    worker = fleet.join("a", ready=True)
    assert not fleet.is_full(worker)
    assert fleet.full(worker, FULL)
    assert not fleet.full(worker, FULL)
    assert worker.refusal is not FULL  # which has frames
    assert str(worker.refusal) == str(FULL)
    assert fleet.is_full(worker)
    fleet.time.now += FULL_SECONDS
    assert not fleet.is_full(worker)
    assert fleet.full(worker, FULL) is False  # it has had none all the time
    fleet.has_room(worker)
    assert not fleet.is_full(worker)
    assert fleet.full(worker, FULL)


def test_whoever_waits_after_others_have_waited_in_vain_waits_a_moment_only(fleet: FakeFleet) -> None:
    fleet.join("a")
    assert fleet.patience() == 10.0
    fleet.waited(in_vain=True)
    fleet.time.now += 100.0
    assert fleet.patience() == AGAIN_SECONDS
    fleet.waited(in_vain=False)
    assert fleet.patience() == 10.0


def test_a_wait_in_vain_is_forgotten_once_a_worker_has_been_there_though_nobody_waited_for_it(fleet: FakeFleet) -> None:
    worker = fleet.join("a")
    fleet.waited(in_vain=True)
    fleet.answered(worker, ABLE)
    fleet.lost(worker, AWAY)
    assert fleet.patience() == 10.0


def test_workers_that_only_waiting_finds_are_given_the_time_that_they_were_left_alone(fleet: FakeFleet) -> None:
    fleet.join("a")
    fleet.join("b", can_look=False)
    fleet.waited(in_vain=True)
    assert fleet.patience() == AGAIN_SECONDS
    fleet.time.now += 3.0
    assert fleet.patience() == 3.0
    fleet.time.now += 100.0
    assert fleet.patience() == 10.0


def test_a_worker_says_what_is_known_of_it(fleet: FakeFleet) -> None:
    worker = fleet.join("a")
    assert repr(fleet) == "<Fleet <Worker a not asked yet>>"
    fleet.failed(worker, AWAY)
    assert repr(worker) == "<Worker a away: nobody listens there>"
