"""Which workers a fleet calls ready, which it has asked again, and when."""

import itertools

import pytest
from fake_members import AWAY, WRONG, FakeMembers, Name

from fedstack.errors import DeadlineExceededError, ResourceLimitError
from fedstack.executors.remote.workers import Worker
from fedstack.membership.member import MemberState
from fedstack.membership.members import AGAIN_SECONDS, LONGEST_PAUSE, Change, Members

FULL = ResourceLimitError("no room")
SILENT = DeadlineExceededError("it says nothing")


@pytest.fixture
def fleet() -> FakeMembers:
    return FakeMembers()


def test_a_worker_that_has_answered_is_ready_and_not_asked_again(fleet: FakeMembers) -> None:
    worker = fleet.join("a")
    assert fleet.ready == []
    fleet.answered(worker)
    assert fleet.ready == [worker]
    assert fleet.seconds_to_due() is None
    assert fleet.changes() == [("a", "READY")]


def test_a_worker_is_asked_by_one_at_a_time(fleet: FakeMembers) -> None:
    worker = fleet.join("a")
    fleet.lost(worker, AWAY)
    fleet.time.now += 100.0
    assert fleet.due() == []
    fleet.failed(worker, AWAY)
    fleet.time.now += 100.0
    assert fleet.due() == [worker]


def test_pauses_between_attempts_grow_up_to_a_bound_and_begin_anew_after_an_answer(fleet: FakeMembers) -> None:
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

    growing = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert pauses(7) == growing
    fleet.answered(worker)
    fleet.lost(worker, AWAY)
    assert fleet.due() == [worker]
    assert pauses(2) == growing[:2]


def test_a_loss_is_told_once_however_often_it_is_found_out(fleet: FakeMembers) -> None:
    worker = fleet.join("a", ready=True)
    fleet.take_changes()
    fleet.lost(worker, AWAY)
    fleet.lost(worker, AWAY)
    fleet.due()
    fleet.failed(worker, AWAY)
    assert fleet.changes() == [("a", "AWAY")]
    fleet.answered(worker)
    fleet.lost(worker, AWAY)
    assert fleet.changes() == [("a", "READY"), ("a", "AWAY")]


def test_a_change_has_its_cause(fleet: FakeMembers) -> None:
    worker = fleet.join("a")
    fleet.failed(worker, AWAY)
    fleet.returned(worker)
    fleet.answered(worker)
    new, away, back, ready = MemberState.NEW, MemberState.AWAY, MemberState.BACK, MemberState.READY
    changes = [Change(worker, new, away, AWAY), Change(worker, away, back, AWAY), Change(worker, back, ready, None)]
    assert fleet.take_changes() == changes
    assert fleet.take_changes() == []


def test_how_many_are_ready_and_which_states_there_are_is_known_after_each_event(fleet: FakeMembers) -> None:
    first, second = fleet.join("a"), fleet.join("b")
    assert (fleet.number_ready, fleet.states) == (0, {MemberState.NEW})
    fleet.answered(first)
    assert (fleet.number_ready, fleet.states) == (1, {MemberState.NEW, MemberState.READY})
    fleet.answered(second)
    fleet.answered(second)
    assert (fleet.number_ready, fleet.states) == (2, {MemberState.READY})
    fleet.lost(first, AWAY)
    assert (fleet.number_ready, fleet.states) == (1, {MemberState.AWAY, MemberState.READY})
    fleet.remove(second)
    assert (fleet.number_ready, fleet.states) == (0, {MemberState.AWAY})
    fleet.remove(first)
    assert (fleet.number_ready, fleet.states) == (0, set())


def test_a_loss_that_is_found_out_in_a_pause_does_not_shorten_it(fleet: FakeMembers) -> None:
    worker = fleet.join("a")
    for _ in range(3):
        fleet.failed(worker, AWAY)
        fleet.time.now += 2.0
        fleet.due()
    fleet.failed(worker, AWAY)
    fleet.lost(worker, AWAY)
    assert fleet.seconds_to_due() == pytest.approx(0.8)


def test_a_worker_that_is_ready_is_not_asked_because_it_is_said_to_be_there(fleet: FakeMembers) -> None:
    worker = fleet.join("a", ready=True)
    fleet.returned(worker)
    assert fleet.ready == [worker]
    assert fleet.seconds_to_due() is None


def test_those_that_need_not_be_asked_any_more_are_told_once(fleet: FakeMembers) -> None:
    away, answering, removed, gone, back, in_pause = (fleet.join(name) for name in "abcdef")
    fleet.failed(in_pause, AWAY)
    fleet.answered(answering)
    fleet.lost(away, AWAY)
    fleet.lost(gone, AWAY, for_good=True)
    fleet.returned(back)
    fleet.remove(removed)
    fleet.remove(in_pause)
    assert fleet.take_at_rest() == [answering, gone, back, removed]
    assert fleet.take_at_rest() == []
    fleet.close()
    assert fleet.take_at_rest() == [away]


def test_a_worker_that_refuses_us_is_asked_on_and_one_that_is_gone_is_not(fleet: FakeMembers) -> None:
    refusing, gone = fleet.join("refusing"), fleet.join("gone")
    fleet.failed(refusing, WRONG)
    fleet.lost(gone, AWAY, for_good=True)
    assert (refusing.state, gone.state) == (MemberState.WRONG, MemberState.GONE)
    fleet.time.now += LONGEST_PAUSE
    assert fleet.due() == [refusing]
    fleet.answered(gone)  # what was sent before its end
    fleet.answered(refusing)
    assert fleet.ready == [refusing]


def test_a_worker_that_is_said_to_be_back_is_asked_at_once_whatever_was_known_of_it(fleet: FakeMembers) -> None:
    in_pause, being_asked, gone = fleet.join("a"), fleet.join("b"), fleet.join("c")
    fleet.failed(in_pause, AWAY)
    fleet.lost(gone, AWAY, for_good=True)
    for worker in fleet.members:
        fleet.returned(worker)
        fleet.returned(worker)
    assert not being_asked.asking  # in vain perhaps
    assert fleet.due() == [in_pause, being_asked, gone]
    assert fleet.due() == []
    fleet.answered(gone)
    assert fleet.ready == [gone]


def test_a_supervised_worker_that_is_lost_is_not_asked_until_it_is_said_to_be_back(fleet: FakeMembers) -> None:
    worker = fleet.join("a", ready=True, supervised=True)
    fleet.lost(worker, AWAY)
    fleet.time.now += 1000.0
    assert (fleet.due(), fleet.seconds_to_due()) == ([], None)
    fleet.returned(worker)
    assert fleet.due() == [worker]
    fleet.lost(worker, AWAY)
    fleet.failed(worker, AWAY)  # the attempt that the loss has ended
    assert fleet.seconds_to_due() is None


def test_a_removed_worker_is_as_if_it_had_never_been(fleet: FakeMembers) -> None:
    kept, removed = fleet.join("kept", ready=True), fleet.join("removed", ready=True)
    fleet.take_changes()
    fleet.remove(removed)
    fleet.answered(removed)
    fleet.lost(removed, AWAY)
    fleet.returned(removed)
    assert (fleet.members, fleet.ready, fleet.due()) == ((kept,), [kept], [])
    assert fleet.changes() == [("removed", "REMOVED")]


def test_a_closed_fleet_asks_nobody(fleet: FakeMembers) -> None:
    asked, lost = fleet.join("asked"), fleet.join("lost", ready=True)
    fleet.close()
    fleet.failed(asked, AWAY)
    fleet.lost(lost, AWAY)
    fleet.returned(asked)
    fleet.answered(asked)
    fleet.time.now += 1000.0
    assert fleet.due() == []
    assert not asked.asking
    assert (asked.state, lost.state) == (MemberState.NEW, MemberState.READY), "what is heard does not count any more"
    fleet.add(Worker(Name("late")))
    assert fleet.seconds_to_due() is None


def test_a_worker_that_had_no_room_counts_as_full_for_a_while(fleet: FakeMembers) -> None:
    worker = fleet.join("a", ready=True)
    assert not fleet.is_full(worker)
    assert fleet.full(worker, FULL)
    assert not fleet.full(worker, FULL)
    assert worker.refusal is not FULL  # which has frames
    assert str(worker.refusal) == str(FULL)
    fleet.time.now += 4.875
    assert fleet.is_full(worker)
    fleet.time.now += 0.125
    assert not fleet.is_full(worker)
    assert fleet.full(worker, FULL) is False  # it has had none all the time
    fleet.has_room(worker)
    assert not fleet.is_full(worker)
    assert fleet.full(worker, FULL)


def test_whoever_waits_after_others_have_waited_in_vain_waits_a_moment_only(fleet: FakeMembers) -> None:
    fleet.join("a")
    assert fleet.patience() == 10.0
    fleet.waited(in_vain=True)
    fleet.time.now += 100.0
    assert fleet.patience() == AGAIN_SECONDS
    fleet.waited(in_vain=False)
    assert fleet.patience() == 10.0


def test_a_wait_in_vain_is_forgotten_once_a_worker_has_been_there_though_nobody_waited_for_it(
    fleet: FakeMembers,
) -> None:
    worker = fleet.join("a")
    fleet.waited(in_vain=True)
    fleet.answered(worker)
    fleet.lost(worker, AWAY)
    assert fleet.patience() == 10.0


def test_workers_that_only_waiting_finds_are_given_the_time_that_they_were_left_alone(fleet: FakeMembers) -> None:
    fleet.join("a")
    fleet.join("b", can_look=False)
    fleet.waited(in_vain=True)
    assert fleet.patience() == AGAIN_SECONDS
    fleet.time.now += 3.0
    assert fleet.patience() == 3.0
    fleet.time.now += 100.0
    assert fleet.patience() == 10.0


def test_whoever_waits_for_a_fleet_without_workers_in_vain_waits_a_moment_the_next_time() -> None:
    fleet = FakeMembers(3.0)
    fleet.waited(in_vain=True)
    fleet.time.now += 2.0
    assert fleet.patience() == 0.25


def test_nobody_waits_for_longer_than_they_said() -> None:
    fleet = FakeMembers(0.125)
    assert fleet.patience() == 0.125
    fleet.waited(in_vain=True)
    assert fleet.patience() == 0.125
    assert Members[Worker]().patience() == 10.0, "by default"


def test_a_worker_says_what_is_known_of_it(fleet: FakeMembers) -> None:
    worker = fleet.join("a")
    assert repr(fleet) == "<Members <Worker a not contacted yet>>"
    fleet.failed(worker, AWAY)
    assert repr(worker) == "<Worker a away: nobody listens there>"


def test_callers_wait_for_each_other_after_a_worker_was_silent(fleet: FakeMembers) -> None:
    """However many find it out at the same time; and longer if it happens again, until it has been well for a while."""
    worker = fleet.join("a", ready=True)
    assert fleet.gap() == 0.0
    for _ in range(100):
        fleet.lost(worker, SILENT)
    assert fleet.gap() == 0.0  # for it is not used
    gaps = []
    for _ in range(10):
        fleet.due()
        fleet.answered(worker)
        gaps.append(fleet.gap())
        fleet.time.now += 5.0
        fleet.lost(worker, SILENT)
        fleet.time.now += 1.0
    assert gaps[0] == 0.01
    assert all(1.2 * before < after for before, after in itertools.pairwise(gaps))
    fleet.due()
    fleet.answered(worker)
    before = fleet.gap()
    fleet.time.now += 15.0
    assert fleet.gap() == pytest.approx(before / 2)
    fleet.time.now += 200.0
    assert fleet.gap() == 0.0


def test_a_worker_that_is_full_has_too_much_to_do_and_one_that_has_ended_has_not(fleet: FakeMembers) -> None:
    full, ended, calm = (fleet.join(name, ready=True) for name in "abc")
    fleet.lost(ended, AWAY)
    fleet.due()
    fleet.answered(ended)
    assert fleet.gap() == 0.0
    fleet.full(full, FULL)
    assert fleet.gap() == 0.01
    fleet.remove(full)
    assert fleet.gap() == 0.0
    assert fleet.ready == [ended, calm]
