"""Which values a scheduler has brought here, what becomes of them, and when it does without a worker that stops."""

import pytest
from scheduler_world import World

from fedstack.service.coordinator.calls.closures import Closure, ClosureState, Fetch, Leave, Search


def made(world: World, *names: str, **options: object) -> list[Closure]:
    """Returns closures that have run."""
    closures = [world.add(name, **options) for name in names]
    world.run(*closures)
    world.act()
    return closures


def fetched(world: World) -> list[tuple[str, list[str]]]:
    """Returns the workers from which values are to be brought here, each with the names of the closures."""
    return [
        (action.worker.name, [closure.name for closure in action.closures])
        for action in world.act()
        if isinstance(action, Fetch)
    ]


def leaves(world: World) -> list[str]:
    return [action.worker.name for action in world.act() if isinstance(action, Leave)]


def test_a_wanted_value_is_brought_here_once_with_others_of_its_worker() -> None:
    world = World()
    a, b, c = made(world, "a", "b", "c")
    for closure in (a, b, a):
        world.scheduler.want(closure)
    assert fetched(world) == [("worker 0", ["a", "b"])]
    world.scheduler.want(a)
    assert fetched(world) == []
    world.copied(a, b)
    assert (a.copy, b.copy, c.copy) == (("the value",), ("the value",), None)
    world.scheduler.want(a)
    assert fetched(world) == []
    assert not world.workers[0].fetching


def test_a_value_that_is_waited_for_is_brought_here_when_it_is_there() -> None:
    world = World()
    a, b, c = [world.add(name) for name in "abc"]
    for closure in (a, b):
        world.scheduler.want(closure)
    world.scheduler.unwant(b)
    world.run(a, b, c)
    assert fetched(world) == [("worker 0", ["a"])]
    world.scheduler.unwant(a)  # it goes on coming
    assert a.wanted
    assert a in world.workers[0].fetching


def test_who_waits_is_notified_when_a_value_is_here() -> None:
    world = World()
    (a,) = made(world, "a")
    notified: list[str] = []
    a.callbacks[lambda: notified.append("a")] = None
    world.scheduler.want(a)
    world.act()
    assert notified == []
    world.copied(a)
    world.act()
    world.act()
    assert notified == ["a"]


def test_a_value_that_cannot_be_brought_is_refused_to_those_who_wait_and_tried_again_for_others() -> None:
    world = World()
    a, b = made(world, "a", "b")
    notified: list[str] = []
    for closure in (a, b):
        closure.callbacks[lambda closure=closure: notified.append(closure.name)] = None  # type: ignore[misc]
    world.scheduler.want(a)
    world.act()
    error = ValueError("too large")
    world.scheduler.not_fetched(a, world.workers[0], error)
    world.scheduler.not_fetched(b, world.workers[0], error)  # nobody wants it any more
    world.act()
    assert (a.refusal, b.refusal, notified) == (error, None, ["a"])
    assert (a.wanted, a.state, a.held != {}) == (False, ClosureState.READY, True)
    world.scheduler.want(a)
    assert fetched(world) == [("worker 0", ["a"])]


def test_what_was_on_its_way_from_a_lost_worker_comes_from_another_or_is_made_again() -> None:
    world = World(2)
    a, b, c = [world.add(name) for name in "abc"]
    world.scheduler.silent(world.workers[1], True)
    world.run(a, b, c)
    world.scheduler.silent(world.workers[1], False)
    world.scheduler.holds(a, world.workers[1], "a copy")
    for closure in (a, b):
        world.scheduler.want(closure)
    assert fetched(world) == [("worker 0", ["a", "b"])]
    world.lose(world.workers[0])
    world.scheduler.not_fetched(a, world.workers[0], ValueError("its executor is closed"))
    assert a.refusal is None
    assert world.given() == {"worker 1": ["b"]}
    assert world.fetches == [a, b, a]
    world.done(b)
    assert fetched(world) == [("worker 1", ["b"])]
    assert c.state is ClosureState.LOST


def test_who_wants_what_cannot_be_made_again_is_notified() -> None:
    world = World()
    (a,) = made(world, "a", repeatable=False)
    world.scheduler.want(a)
    world.act()
    a.callbacks[lambda: world.notified.append(a)] = None
    world.notified.clear()
    world.lose(world.workers[0])
    world.act()
    assert a.state is ClosureState.FAILED
    assert world.notified == [a]


def test_a_dropped_value_is_brought_no_further() -> None:
    world = World()
    a, b, c = made(world, "a", "b", "c")
    for closure in (a, b):
        world.scheduler.want(closure)
    assert world.scheduler.drop(b) == world.workers, "it has not begun"
    assert fetched(world) == [("worker 0", ["a"])]
    assert world.scheduler.drop(a) == world.workers
    assert world.scheduler.drop(c) == []
    assert (a.held, a.wanted, world.workers[0].fetching) == ({}, False, {})


def test_what_is_prefetched_counts_as_running_until_it_is_here() -> None:
    world = World(most_running=1)
    a = world.add("a", prefetch=True)
    b = world.add("b", a)
    world.run(a)
    assert (a.state, b.state) == (ClosureState.RUNNING, ClosureState.WAITING)
    assert world.given() == {}
    assert world.fetches == [a]
    assert world.scheduler.drop(a) == [], "it runs all the same"
    world.copied(a)
    assert (a.state, a.copy) == (ClosureState.READY, ("the value",))
    assert world.given() == {"worker 0": ["b"]}
    assert world.fetches == [a]


def test_what_is_prefetched_when_its_worker_is_lost_runs_again() -> None:
    world = World(2)
    first, second = world.workers
    a = world.add("a", prefetch=True)
    world.run(a)
    world.act()
    world.lose(first)
    world.scheduler.copied(a, "too late", first)
    assert (a.state, a.copy, world.scheduler.ledger.losses(a)) == (ClosureState.QUEUED, None, 1)
    world.given()
    world.scheduler.copied(a, "too late", first)
    assert (a.state, a.copy) == (ClosureState.RUNNING, None)
    assert a in second.running


def test_what_cannot_be_prefetched_has_failed() -> None:
    world = World(goes_on=True)
    a = world.add("a", prefetch=True)
    world.run(a)
    error = ValueError("too large")
    world.scheduler.not_fetched(a, world.workers[0], error)
    assert (a.state, a.error, a.held) == (ClosureState.FAILED, error, {})
    assert (world.scheduler.is_idle, world.scheduler.values, world.scheduler.take_errors()) == (True, 0, [error])


@pytest.mark.parametrize("answer", ["copied", "gone"])
def test_what_was_cancelled_while_it_was_prefetched_leaves_nothing(answer: str) -> None:
    world = World()
    a, (worker,) = world.add("a", prefetch=True), world.workers
    world.run(a)
    world.act()
    world.scheduler.cancel(a)
    assert world.scheduler.values == 0
    assert not world.scheduler.is_idle, "the worker has not answered"
    if answer == "copied":
        world.scheduler.copied(a, "the value", worker)
    else:
        world.scheduler.gone(a, worker)
    assert (a.state, a.copy, a.held) == (ClosureState.CANCELLED, None, {})
    assert (worker.fetching, worker.running, world.scheduler.is_idle) == ({}, {}, True)


def test_what_only_a_worker_holds_that_stops_comes_here_before_it_is_left() -> None:
    world = World(2)
    world.scheduler.silent(world.workers[1], True)
    a, b, _ = made(world, "a", "b", "elsewhere")
    stops, other = world.workers
    world.scheduler.holds(_, other, "a copy")
    late = world.add("late")
    world.now += 1.0
    assert world.given() == {"worker 0": ["late"]}
    world.scheduler.drain(stops)
    world.add("not there")
    assert fetched(world) == [("worker 0", ["a", "b"])]
    world.scheduler.copied(a, "the value", stops)
    world.scheduler.copied(b, "the value", stops)
    assert leaves(world) == [], "it still runs something"
    world.done(late)
    assert fetched(world) == [("worker 0", ["late"])]
    assert leaves(world) == []
    world.scheduler.copied(late, "the value", stops)
    assert leaves(world) == ["worker 0"]
    assert leaves(world) == ["worker 0"], "until it is lost"
    world.lose(stops)
    assert leaves(world) == []


def test_what_cannot_be_brought_does_not_hold_up_a_worker_that_stops() -> None:
    world = World()
    (a,), (worker,) = made(world, "a"), world.workers
    world.scheduler.drain(worker)
    assert fetched(world) == [("worker 0", ["a"])]
    world.scheduler.not_fetched(a, worker, ValueError("too large"))
    assert fetched(world) == []
    assert leaves(world) == ["worker 0"]
    assert a.refusal is None, "nobody has asked for it"


def test_at_the_end_those_are_notified_who_wait_for_values() -> None:
    world = World()
    a = made(world, "a")[0]
    b = world.add("b")
    world.scheduler.want(a)
    world.act()
    a.callbacks[lambda: world.notified.append(a)] = None
    world.notified.clear()
    world.scheduler.end()
    world.act()
    assert set(world.notified) == {a, b}
    assert b.state is ClosureState.CANCELLED


def test_a_worker_is_looked_for_while_there_is_none_for_closures_that_have_not_ended() -> None:
    world = World(0)
    assert Search() not in world.act()
    closure = world.add("a")
    assert Search() in world.act()
    worker = world.join(0)
    assert Search() not in world.act()
    world.scheduler.lose_worker(worker, ValueError("gone"))
    assert Search() in world.act()
    world.scheduler.cancel(closure)
    assert Search() not in world.act()
