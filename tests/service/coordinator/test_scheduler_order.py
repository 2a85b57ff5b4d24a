"""Which of the closures that can run goes where first, and what waits a moment for others to go along with."""

import pytest
from scheduler_world import World

from fedstack.service.coordinator.calls.closures import ClosureState
from fedstack.service.coordinator.queues import GATHER_SECONDS, MOST_RUNNING
from fedstack.service.coordinator.scheduler import MOST_QUEUED


def test_numbers_are_those_that_users_are_promised() -> None:
    assert (MOST_QUEUED, MOST_RUNNING) == (262_144, 8)
    assert 0 < GATHER_SECONDS <= 0.01  # a moment


def test_a_closure_whose_arguments_are_elsewhere_leaves_an_idle_place_idle() -> None:
    world = World(2)
    a, b = world.add("a"), world.add("b")
    world.run(a, b)
    world.add("of b", b)
    assert world.given() == {"worker 1": ["of b"]}


@pytest.mark.parametrize("other_places", [0, 1])
def test_a_closure_that_is_scheduled_with_arguments_waits_a_moment_for_others_too(other_places: int) -> None:
    world = World(1 + other_places)
    begun = world.now
    a = world.add("a")
    world.add("elsewhere")
    world.add("long")
    given = world.given()
    assert "long" in given["worker 0"]
    world.now += GATHER_SECONDS / 2
    world.done(a)
    world.add("of a", a)
    assert world.given() == {}
    assert world.asks_again() == pytest.approx(GATHER_SECONDS / 2)
    world.now = begun + GATHER_SECONDS
    assert world.given() == {"worker 0": ["of a"]}


def test_what_waits_at_several_places_goes_out_at_the_first_of_their_times() -> None:
    world = World(2)
    a, b = world.add("a"), world.add("b")
    world.run(a, b)
    for value in (a, b):
        world.now += GATHER_SECONDS / 2
        world.add("long", value)
        world.given()
        world.add("next", value)
    assert world.given() == {}
    assert world.asks_again() == pytest.approx(GATHER_SECONDS / 2)


def test_there_is_no_time_to_wait_for_at_a_full_place() -> None:
    world = World(most_running=1)
    world.add("a")
    world.add("b")
    world.given()
    assert world.asks_again() is None


def test_what_becomes_ready_queues_behind_what_can_run_already() -> None:
    world = World(most_running=1)
    value = world.add("value")
    world.run(value)
    a = world.add("a", value)
    world.given()
    world.add("b", value)
    world.add("of a", a)
    world.done(a)
    assert world.one_by_one() == ["b", "of a"]


def test_closures_of_a_lost_place_run_again_in_their_order() -> None:
    world = World()
    for name in "abc":
        world.add(name)
    world.given()
    world.replace(world.workers[0])
    world.add("d")
    assert world.given() == {"worker 1": ["a", "b", "c", "d"]}


def test_what_waited_for_a_lost_place_runs_elsewhere_in_its_order_before_others() -> None:
    world = World(2, most_running=1)
    a = world.add("a")
    world.run(a)
    world.copied(a)
    world.add("long", a)
    busy = world.add("busy")
    assert world.given() == {"worker 0": ["long"], "worker 1": ["busy"]}
    for name in ("b", "c"):
        world.add(name, a)
    world.add("d")
    world.lose(world.workers[0])
    world.done(busy)
    assert world.one_by_one() == ["long", "b", "c", "d"]


def test_a_place_that_is_about_to_stop_gets_nothing_and_others_run_what_waits_for_it() -> None:
    world = World(2)
    a, b = world.add("a"), world.add("b")
    world.run(a, b)
    world.add("of a", a)
    world.scheduler.drain(world.workers[0])
    world.add("other")
    assert world.given() == {"worker 1": ["other", "of a"]}


def test_who_has_nothing_to_do_helps_where_most_waits() -> None:
    world = World(3, most_running=1)
    a, b, c = [world.add(name) for name in "abc"]
    world.run(a, b, c)
    for name, value in (("long a", a), ("long b", b), ("a 1", a), ("b 1", b), ("b 2", b)):
        world.add(name, value)
    assert world.given() == {"worker 0": ["long a"], "worker 1": ["long b"], "worker 2": ["b 1"]}


def test_what_waits_and_runs_is_counted() -> None:
    world = World(most_running=2)
    a, b, c = [world.add(name) for name in "abc"]
    assert (world.scheduler.waiting, world.scheduler.running, world.scheduler.unfinished) == (3, 0, 3)
    world.given()
    assert (world.scheduler.waiting, world.scheduler.running, world.scheduler.unfinished) == (1, 2, 3)
    world.scheduler.cancel(a)
    assert (world.scheduler.waiting, world.scheduler.running, world.scheduler.unfinished) == (1, 2, 2)
    world.scheduler.cancel(c)
    assert (world.scheduler.waiting, world.scheduler.running, world.scheduler.unfinished) == (0, 2, 1)
    world.done(a, b)
    assert (world.scheduler.waiting, world.scheduler.running, world.scheduler.unfinished) == (0, 0, 0)


def test_a_closure_waits_for_all_of_its_arguments_one_of_which_may_be_there() -> None:
    world = World(2)
    a = world.add("a")
    world.run(a)
    b, c = world.add("b"), world.add("c")
    d = world.add("d", a, b, c, b)
    world.given()
    world.done(b)
    assert d.state is ClosureState.WAITING
    world.done(c)
    assert d.state is ClosureState.QUEUED
    assert world.one_by_one() == ["d"]
