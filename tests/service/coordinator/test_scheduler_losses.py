"""What scheduled calls do when workers are lost: what runs again, what is made again, and what is given up."""

import pytest
from scheduler_world import AWAY, World

from fedstack.errors import LostWorkersError, NoWorkersError, WorkerUnavailableError
from fedstack.service.coordinator.calls.closures import Closure, ClosureState
from fedstack.service.coordinator.losses import MOST_DEPTH, held_only_by
from fedstack.service.coordinator.queues import GATHER_SECONDS

# Closures that end workers.


def test_a_closure_that_has_lost_two_workers_runs_alone_and_is_given_up_after_two_more() -> None:
    world = World(goes_on=True)
    bad, (worker,) = world.add("bad"), world.workers
    for _ in range(2):
        good = world.add("good")
        assert world.given() == {worker.name: ["bad", "good"]}
        world.scheduler.succeeded(good, worker, "held")
        worker = world.replace(worker)
    world.add("good")
    for _ in range(2):
        assert world.given() == {worker.name: ["bad"]}
        world.now += 1.0
        assert world.given() == {}, "nothing runs beside it"
        worker = world.replace(worker)
    assert isinstance(bad.error, LostWorkersError)
    told = (
        "4 workers were lost while they ran 'bad'; the last 2 of them ran nothing else. The call is not retried: "
        "it is away"
    )
    assert str(bad.error) == told
    assert bad.error.__cause__ is AWAY
    assert world.given() == {worker.name: ["good"]}


def suspects(world: World, *names: str) -> list[Closure]:
    """Returns closures which have lost two workers each; nothing else has been scheduled."""
    closures = [world.add(name) for name in names]
    for round_ in range(2):
        workers = [world.join(100 + index) for index in range(len(names))]
        world.given()
        for closure in closures:
            worker = next(worker for worker in workers if closure in worker.running)
            world.lose(worker)
        assert [world.scheduler.ledger.losses(closure) for closure in closures] == [round_ + 1] * len(names)
    return closures


def test_a_suspect_does_not_begin_where_others_run() -> None:
    world = World()
    (worker,), long = world.workers, world.add("long")
    world.given()
    world.scheduler.silent(worker, True)
    suspects(world, "suspect")
    world.scheduler.silent(worker, False)
    beside = world.add("beside")
    world.now += 1.0
    assert world.given() == {"worker 0": ["beside"]}
    world.done(long, beside)
    assert world.given() == {"worker 0": ["suspect"]}


def test_suspects_run_one_after_the_other_in_their_order() -> None:
    world = World(0, most_running=1)
    suspects(world, "first", "second")
    world.join(0)
    world.add("other")
    assert world.one_by_one() == ["first", "second", "other"]


def test_a_suspect_waits_a_moment_for_others_while_a_call_is_under_way() -> None:
    world = World(most_running=1)
    (worker,), begun = world.workers, world.now
    long = world.add("long")
    world.given()
    suspects(world, "suspect")
    world.scheduler.succeeded(long, worker, "held")  # and the call goes on
    assert world.given() == {}
    assert world.asks_again() == pytest.approx(GATHER_SECONDS)
    world.now = begun + GATHER_SECONDS
    assert world.given() == {"worker 0": ["suspect"]}


def test_who_has_run_to_its_end_has_lost_no_worker() -> None:
    world = World(goes_on=True)
    unlucky, worker = world.add("unlucky"), world.workers[0]
    for _ in range(2):
        for _ in range(3):
            world.given()
            worker = world.replace(worker)
        world.run(unlucky)
        assert unlucky.state is ClosureState.READY
        worker = world.replace(worker)
        world.scheduler.need(unlucky)
    world.add("beside it")
    assert world.given() == {worker.name: ["unlucky", "beside it"]}


def test_five_closures_are_named_to_who_gives_up_and_the_others_counted() -> None:
    world = World(6, most_running=1)
    for name in "abcdef":
        world.add(name)
    world.given()
    for worker in world.workers:
        world.lose(worker)
    error = NoWorkersError("none is ready:")
    world.scheduler.gave_up(error)
    named = ", ".join(f"'{name}' (1 time)" for name in "abcde")
    assert error.args == (
        "none is ready:\n  these calls were running on workers that were lost, and may have caused the losses: "
        f"{named} and 1 more",
    )


# What runs again.


def test_a_place_is_lost_once() -> None:
    world = World(goes_on=True)
    closure = world.add("a")
    world.given()
    for _ in range(9):
        world.lose(world.workers[0])
    assert closure.state is ClosureState.QUEUED
    world.join(1)
    assert world.given() == {"worker 1": ["a"]}


def test_nothing_is_left_at_a_lost_place() -> None:
    world = World()
    (worker,) = world.workers
    a = world.add("a")
    world.run(a)
    world.add("b")
    world.given()
    world.lose(worker)
    assert (worker.running, worker.values, a.held) == ({}, {}, {})
    assert (world.scheduler.workers, world.scheduler.values, world.scheduler.running) == ((), 0, 0)


def test_what_a_lost_place_still_says_does_not_count() -> None:
    world = World()
    a, (worker,) = world.add("a"), world.workers
    world.given()
    world.lose(worker)
    world.scheduler.succeeded(a, worker, "too late")
    assert (a.state, a.held) == (ClosureState.QUEUED, {})
    other = world.join(1)
    world.given()
    world.scheduler.succeeded(a, worker, "too late")
    assert (a.state, a.held) == (ClosureState.RUNNING, {})
    world.done(a)
    world.scheduler.holds(a, worker, "too late")
    assert a.held == {other: "a at worker 1"}
    world.lose(other)
    world.scheduler.holds(a, world.join(2), "of which the worker has heard nothing")
    assert (a.state, a.held) == (ClosureState.LOST, {})


def test_what_was_cancelled_does_not_run_again() -> None:
    world = World()
    a = world.add("a")
    world.given()
    world.scheduler.cancel(a)
    world.replace(world.workers[0])
    assert world.given() == {}
    assert (a.state, world.scheduler.is_idle) == (ClosureState.CANCELLED, True)


@pytest.mark.parametrize("may_repeat", [(False, True), (True, False), (True, False, True)])
def test_if_one_may_not_run_again_the_others_are_cancelled(may_repeat: tuple[bool, ...]) -> None:
    world = World()
    closures = [world.add(f"{number}", repeatable=may) for number, may in enumerate(may_repeat)]
    world.given()
    world.replace(world.workers[0])
    states = [ClosureState.CANCELLED if may else ClosureState.FAILED for may in may_repeat]
    assert [closure.state for closure in closures] == states
    assert world.given() == {}
    assert world.scheduler.is_idle
    (error,) = world.scheduler.take_errors()
    assert isinstance(error, WorkerUnavailableError)
    assert "is gone, since its worker was lost: it is away. The value cannot be rebuilt" in str(error)


# What is made again.


def test_a_value_at_two_places_outlives_each_of_them() -> None:
    world = World(2)
    a = world.add("a")
    world.run(a)
    first, second = world.workers
    world.scheduler.holds(a, second, "a at worker 1")
    assert world.scheduler.values == 2
    world.lose(first)
    assert (a.state, a.held, world.scheduler.values) == (ClosureState.READY, {second: "a at worker 1"}, 1)
    b = world.add("b", a)
    assert world.given() == {"worker 1": ["b"]}
    world.done(b)
    world.lose(second)
    assert a.state is ClosureState.LOST


def test_of_a_place_that_stops_those_values_are_saved_that_would_be_lost() -> None:
    world = World(3)
    alone, here, elsewhere, stopping = [world.add(name) for name in ("alone", "here", "elsewhere", "stopping")]
    world.scheduler.silent(world.workers[1], True)
    world.scheduler.silent(world.workers[2], True)
    world.run(alone, here, elsewhere, stopping)
    worker, other, third = world.workers
    world.copied(here)
    world.scheduler.holds(elsewhere, other, "a copy")
    world.scheduler.holds(stopping, third, "a copy")
    assert held_only_by(worker) == [alone]
    for one in (worker, third):
        world.scheduler.drain(one)
    assert held_only_by(worker) == [alone, stopping]
    world.copied(alone)
    assert held_only_by(worker) == [stopping]


def test_who_needs_a_value_that_is_there_has_nothing_run_again() -> None:
    world = World()
    closures = [world.add("a"), world.add("b", repeatable=False)]
    world.run(*closures)
    for closure in closures:
        world.scheduler.need(closure)
    assert [closure.state for closure in closures] == [ClosureState.READY] * 2
    assert world.given() == {}


def test_a_lost_value_that_two_others_are_made_of_is_rebuilt_once() -> None:
    world = World()
    first = world.add("first")
    a = world.add("a", first)
    b = world.add("b", a)
    c = world.add("c", a, b)
    for closure in (first, a, b, c):
        world.run(closure)
    world.replace(world.workers[0])
    world.scheduler.need(c)
    assert world.one_by_one() == ["first", "a", "b", "c"]
    assert c.state is ClosureState.READY


def test_all_that_wait_for_a_value_fail_when_it_cannot_be_made_again() -> None:
    world = World(goes_on=True)
    first = world.add("first")
    a = world.add("a", first)
    b = world.add("b", first, a)
    for closure in (first, a, b):
        world.run(closure)
    world.replace(world.workers[0])
    world.scheduler.need(b)
    c = world.add("c", a)
    world.given()
    error = ValueError("no")
    world.fail(first, error)
    assert {one.state for one in (first, a, b, c)} == {ClosureState.FAILED}
    world.act()
    assert world.notified.count(c) == 1
    assert world.scheduler.is_idle
    assert world.scheduler.take_errors() == [error]


def test_a_closure_that_waits_for_a_place_has_arguments_made_again_that_were_lost_meanwhile() -> None:
    world = World(2, most_running=1)
    a, b = world.add("a"), world.add("b")
    world.run(a, b)
    long = world.add("long", a)
    world.given()
    both = world.add("both", a, b)
    world.lose(world.workers[1])
    world.done(long)
    assert world.one_by_one() == ["b", "both"]
    assert both.state is ClosureState.READY


@pytest.mark.parametrize("order", [("bad", "lost"), ("lost", "bad")])
def test_for_what_cannot_run_nothing_is_made_again(order: tuple[str, ...]) -> None:
    world = World(goes_on=True)
    made = {name: world.add(name) for name in order}
    error = ValueError("no")
    world.given()
    world.done(made["lost"])
    world.fail(made["bad"], error)
    world.replace(world.workers[0])
    closure = world.add("of both", *[made[name] for name in order])
    assert (closure.state, closure.error) == (ClosureState.FAILED, error)
    assert made["bad"].error is error
    assert world.scheduler.is_idle
    assert made["lost"].state is ClosureState.LOST


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_if_of_the_values_to_be_made_again_one_cannot_be_the_others_still_can(order: tuple[int, ...]) -> None:
    world = World(goes_on=True)
    made = [world.add("a"), world.add("b", root := world.add("root", repeatable=False))]
    last = world.add("last", *[made[index] for index in order])
    world.one_by_one()
    world.replace(world.workers[0])
    world.scheduler.need(last)
    assert last.state is ClosureState.FAILED
    assert "The value of 'root' is gone" in str(last.error)
    assert world.one_by_one() == ["a"][: order[0]], "unless it had begun by then"
    world.scheduler.need(made[0])
    world.one_by_one()
    assert (made[0].state, root.state) == (ClosureState.READY, ClosureState.FAILED)


def test_a_value_that_comes_here_after_its_worker_was_lost_is_there() -> None:
    world = World()
    a = world.add("a")
    world.run(a)
    world.replace(world.workers[0])
    world.copied(a)
    assert (a.state, a.copy) == (ClosureState.READY, ("the value",))
    b = world.add("b")
    world.scheduler.cancel(b)
    world.copied(b)
    assert (b.state, b.copy) == (ClosureState.CANCELLED, None)


def test_a_value_that_was_brought_here_outlives_its_worker() -> None:
    world = World()
    a, (worker,) = world.add("a"), world.workers
    world.given()
    world.scheduler.succeeded(a, worker, "held")
    world.copied(a)
    world.lose(worker)
    assert (a.state, a.copy) == (ClosureState.READY, ("the value",))


def test_a_lost_value_that_may_not_be_made_again_says_so_to_whoever_needs_it() -> None:
    world = World(goes_on=True)
    a = world.add("a", repeatable=False)
    world.run(a)
    world.replace(world.workers[0])
    b = world.add("b", a)
    assert b.state is ClosureState.FAILED
    reason = "The value cannot be rebuilt: the call was scheduled with"
    assert f"The value of 'a' is gone, since its worker was lost. {reason}" in str(b.error)


# How far back.


def test_as_many_calls_are_repeated_for_a_value_as_are_promised_and_no_more() -> None:
    world = World(goes_on=True)
    chain = [first := world.add("0")]
    for number in range(1, 2 * MOST_DEPTH + 1):
        chain.append(world.add(f"{number}", chain[-1], *([first] if number < 9 else [])))
    assert len(world.one_by_one()) == 2 * MOST_DEPTH + 1
    farthest, kept, last = chain[MOST_DEPTH - 1], chain[MOST_DEPTH], chain[-1]
    (lost,), other = world.workers, world.join(1)
    world.scheduler.holds(kept, other, "held")
    world.lose(lost)
    # What is not repeated itself is where the next count begins.
    world.scheduler.need(last)
    assert len(world.one_by_one()) == MOST_DEPTH
    world.scheduler.need(farthest)
    assert len(world.one_by_one()) == MOST_DEPTH
    assert (last.state, farthest.state) == (ClosureState.READY, ClosureState.READY)
    world.replace(other)
    world.scheduler.need(kept)
    assert "cannot be rebuilt: this would repeat a chain of more than 1000 calls" in str(kept.error)
