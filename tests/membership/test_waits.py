"""How long callers wait for workers, and what ends it."""

import pytest
from fake_members import AWAY, WRONG, FakeMembers

from fedstack.errors import AuthenticationError, ClosedError, NoWorkersError
from fedstack.membership.members import AGAIN_SECONDS
from fedstack.membership.waits import GiveUp, LookFor, Pause, Use, Wait


@pytest.fixture
def fleet() -> FakeMembers:
    return FakeMembers()


def test_workers_that_are_all_ready_are_used_at_once(fleet: FakeMembers) -> None:
    workers = [fleet.join(name, ready=True) for name in "ab"]
    assert Wait(fleet).decide() == Use(workers)


def test_the_first_worker_that_is_ready_waits_a_second_for_those_never_heard_of(fleet: FakeMembers) -> None:
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


def test_the_wait_for_others_is_over_after_a_second_to_the_moment(fleet: FakeMembers) -> None:
    first, _ = fleet.join("a", ready=True), fleet.join("b")
    wait = Wait(fleet)
    fleet.time.now += 1.0
    assert wait.decide() == Use([first])


def test_the_first_worker_waits_no_longer_for_others_than_its_caller_does() -> None:
    fleet = FakeMembers(0.5)
    first, _ = fleet.join("a", ready=True), fleet.join("b")
    wait = Wait(fleet)
    fleet.time.now += 0.25
    assert wait.decide() == Pause(0.25)
    fleet.time.now += 0.25
    assert wait.decide() == Use([first])


def test_a_caller_waits_to_the_end_of_its_time_for_workers_that_are_away(fleet: FakeMembers) -> None:
    worker = fleet.join("a")
    fleet.failed(worker, AWAY)
    wait = Wait(fleet)
    assert wait.seconds == 10.0
    for now, seconds in [(100.0, 0.25), (109.5, 0.25), (109.875, 0.125)]:
        fleet.time.now = now
        assert wait.decide() == Pause(seconds)


def test_before_a_wait_ends_in_vain_workers_are_looked_for_once_more(fleet: FakeMembers) -> None:
    away, other, wrong = fleet.join("a"), fleet.join("b"), fleet.join("c")
    fleet.failed(away, AWAY)
    fleet.failed(wrong, WRONG)
    wait = Wait(fleet)
    fleet.time.now += 10.0
    assert wait.decide() == LookFor([away, other])
    fleet.returned(other)
    assert wait.decide() == Pause(AGAIN_SECONDS)
    assert fleet.due() == [away, wrong, other]
    fleet.failed(other, AWAY)
    decision = wait.decide()
    assert isinstance(decision, GiveUp)
    assert decision.error.causes == {
        "a": "nobody listens there",
        "b": "nobody listens there",
        "c": "another token",
    }
    assert fleet.patience() == AGAIN_SECONDS


def test_a_worker_that_is_found_again_has_two_seconds_to_answer(fleet: FakeMembers) -> None:
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
    fleet.answered(worker)
    assert Wait(fleet).decide() == Use([worker])


def test_the_time_to_answer_of_a_worker_that_is_found_again_is_over_to_the_moment(fleet: FakeMembers) -> None:
    worker = fleet.join("a")
    wait = Wait(fleet)
    fleet.time.now += 10.0
    assert wait.decide() == LookFor([worker])
    fleet.returned(worker)
    fleet.time.now += 2.0
    assert isinstance(wait.decide(), GiveUp)


def test_nobody_waits_for_workers_that_time_does_not_mend(fleet: FakeMembers) -> None:
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


def test_a_mistake_that_all_workers_share_is_raised_as_it_is(fleet: FakeMembers) -> None:
    for name in "ab":
        fleet.failed(fleet.join(name), WRONG)
    assert Wait(fleet).decide() == GiveUp(WRONG)
    fleet.failed(fleet.join("c"), AuthenticationError("another certificate"))
    error = Wait(fleet).decide().error
    assert str(error).startswith(
        "None of the 3 workers accepts the credentials; check the token and the certificates:\n  a: another token"
    )


def test_a_fleet_without_workers_waits_for_one_to_be_added(fleet: FakeMembers) -> None:
    wait = Wait(fleet)
    assert wait.decide() == Pause(AGAIN_SECONDS)
    worker = fleet.join("a", ready=True)
    assert wait.decide() == Use([worker])
    fleet.remove(worker)
    wait = Wait(fleet)
    fleet.time.now += 10.0
    assert wait.decide() == LookFor([])
    assert str(wait.decide().error) == "Expected at least one worker, found none within 10 s; add a worker"


def test_a_supervised_worker_is_waited_for_but_not_looked_for(fleet: FakeMembers) -> None:
    worker = fleet.join("a", ready=True, supervised=True)
    fleet.lost(worker, AWAY)
    wait = Wait(fleet)
    assert wait.decide() == Pause(AGAIN_SECONDS)
    fleet.returned(worker)
    fleet.time.now += 10.0
    assert wait.decide() == LookFor([])
    assert wait.decide() == Pause(AGAIN_SECONDS)
    fleet.answered(worker)
    assert wait.decide() == Use([worker])


def test_a_closed_fleet_is_not_waited_for(fleet: FakeMembers) -> None:
    fleet.join("a", ready=True)
    wait = Wait(fleet)
    fleet.close()
    assert isinstance(wait.decide().error, ClosedError)
