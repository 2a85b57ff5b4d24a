"""What a slow worker leaves to faster ones, when it is asked again, and how much workers get at a time."""

import pytest
from scheduler_world import AWAY, World

from fedstack.service.coordinator.calls.closures import WorkerState

SLOW, FAST = 1.0, 0.25


def learn(world: World, worker: WorkerState, seconds: float) -> None:
    """A worker runs some work, which takes so long."""
    for other in world.scheduler.workers:
        world.scheduler.silent(other, other is not worker)
    work = world.add("work")
    world.given()
    world.now += seconds
    world.done(work)
    world.scheduler.drop(work)
    for other in world.scheduler.workers:
        world.scheduler.silent(other, False)


def unequal(*seconds: float) -> World:
    """Returns a world of workers that run one closure at a time, and have been found to take so long."""
    world = World(0)
    for index in range(len(seconds)):
        world.join(index, threads=1)
    for worker, each in zip(world.scheduler.workers, seconds, strict=True):
        learn(world, worker, each)
    return world


@pytest.mark.parametrize(("closures", "slow_gets"), [(1, 0), (2, 0), (3, 1), (4, 1)])
def test_a_slow_place_leaves_what_others_are_through_with_before_it_had_run_one(closures: int, slow_gets: int) -> None:
    world = unequal(SLOW, FAST)
    for _ in range(closures):
        world.add("work")
    # All but the last one take a quarter of a second each, and then the last one, too.
    assert world.given() == ({"worker 0": ["work"]} if slow_gets else {}) | {"worker 1": ["work"]}


def test_two_fast_places_are_through_sooner_than_one() -> None:
    world = unequal(FAST, SLOW, FAST)
    for _ in range(4):
        world.add("work")
    assert world.given() == {"worker 0": ["work"], "worker 2": ["work"]}


def test_what_a_slow_place_left_is_looked_at_again_when_the_fast_one_is_late() -> None:
    world = unequal(SLOW, FAST)
    for _ in range(2):
        world.add("work")
    assert world.given() == {"worker 1": ["work"]}
    assert world.asks_again() == SLOW
    world.now += 0.75
    assert world.given() == {}
    assert world.asks_again() == 0.25
    world.now += 0.25  # it has run for as long as the slow one would have
    assert world.given() == {"worker 0": ["work"]}
    assert world.asks_again() is None


def test_of_several_slow_places_the_fastest_is_asked_first() -> None:
    for seconds in ((SLOW, 2 * SLOW, FAST), (2 * SLOW, SLOW, FAST)):
        world = unequal(*seconds)
        for _ in range(2):
            world.add("work")
        assert world.given() == {"worker 2": ["work"]}
        assert world.asks_again() == SLOW


def test_nobody_asks_again_for_a_slow_place_that_gets_nothing_any_more() -> None:
    world = unequal(SLOW, FAST)
    for _ in range(2):
        world.add("work")
    world.given()
    world.scheduler.silent(world.scheduler.workers[0], True)
    assert world.given() == {}
    assert world.asks_again() is None


@pytest.mark.parametrize("happens", ["silent", "drain", "lose"])
def test_nothing_is_left_to_a_fast_place_that_gets_nothing(happens: str) -> None:
    world = unequal(SLOW, FAST)
    _, fast = world.scheduler.workers
    if happens == "silent":
        world.scheduler.silent(fast, True)
    elif happens == "drain":
        world.scheduler.drain(fast)
    else:
        world.scheduler.lose_worker(fast, AWAY)
    world.add("work")
    assert world.given() == {"worker 0": ["work"]}


def test_equal_places_leave_each_other_nothing() -> None:
    world = unequal(SLOW, SLOW / 2)
    for _ in range(2):
        world.add("work")
    assert world.given() == {"worker 0": ["work"], "worker 1": ["work"]}


def test_what_has_its_arguments_at_a_slow_place_runs_there() -> None:
    world = unequal(SLOW, FAST)
    slow, fast = world.scheduler.workers
    world.scheduler.silent(fast, True)
    a = world.add("make")
    world.given()
    world.done(a)
    world.scheduler.silent(fast, False)
    assert slow in a.held
    world.add("work", a)
    assert world.given() == {"worker 0": ["work"]}


@pytest.mark.parametrize("how", ["failed", "gone"])
def test_only_calls_that_have_run_tell_how_long_calls_take(how: str) -> None:
    world = World(2, goes_on=True)
    slow, fast = world.workers
    learn(world, fast, FAST)
    world.scheduler.silent(fast, True)
    one = world.add("work")
    world.given()
    world.now += SLOW
    if how == "failed":
        world.fail(one, ValueError("no"))
    else:
        world.scheduler.cancel(one)
        world.scheduler.gone(one, slow)
        world.scheduler.called(slow, -1)
    world.scheduler.silent(fast, False)
    world.add("work")
    assert world.given() == {"worker 0": ["work"]}


def test_a_place_gets_no_more_than_it_runs_until_its_calls_are_found_to_be_quick() -> None:
    world = World(0)
    world.join(0, threads=2)
    closures = [world.add("work") for _ in range(40)]

    def at_once(seconds: float) -> int:
        given = len(world.given()["worker 0"])
        world.now += seconds
        world.done(*closures[:given])
        del closures[:given]
        return given

    assert [at_once(seconds) for seconds in (0.01, 0.01, 1.0, 1.0)] == [2, 8, 8, 2]


def test_a_place_with_more_threads_gets_no_more_than_others() -> None:
    world = World(0, most_running=3)
    world.join(0, threads=20)
    for _ in range(4):
        world.add("work")
    assert world.given() == {"worker 0": ["work"] * 3}
