"""Which closure runs where, in which order, and what becomes of it."""

import pytest
from scheduler_world import AWAY, World

from fedstack.errors import ClosureCancelledError, LostWorkersError, NoWorkersError, WorkerUnavailableError
from fedstack.service.coordinator.calls.closures import ClosureState
from fedstack.service.coordinator.cancelled import CANCELLED_SECONDS
from fedstack.service.coordinator.losses import MOST_DEPTH
from fedstack.service.coordinator.queues import GATHER_SECONDS


def test_closures_are_spread_over_places_in_the_order_of_scheduling() -> None:
    world = World(2)
    for name in "abcd":
        world.add(name)
    assert world.given() == {"worker 0": ["a", "c"], "worker 1": ["b", "d"]}


def test_a_place_runs_no_more_than_a_number_at_a_time() -> None:
    world = World(most_running=2)
    a, b, _c = [world.add(name) for name in "abc"]
    assert world.given() == {"worker 0": ["a", "b"]}
    assert world.given() == {}
    world.done(a, b)
    assert world.given() == {"worker 0": ["c"]}


def test_a_link_of_a_chain_goes_out_as_soon_as_the_one_before_has_ended() -> None:
    world = World()
    a = world.add("a")
    world.add("slow")
    b = world.add("b", a)
    world.add("c", b)
    assert world.given() == {"worker 0": ["a", "slow"]}
    for link, after in ((a, "b"), (b, "c")):
        world.done(link)
        assert world.given() == {"worker 0": [after]}


def test_a_place_that_does_not_answer_gets_nothing_more_until_it_does() -> None:
    world = World(2, most_running=2)
    a, b = world.add("a"), world.add("b")
    assert world.given() == {"worker 0": ["a"], "worker 1": ["b"]}
    world.scheduler.silent(world.workers[0], True)
    world.done(b)
    world.add("c")
    world.add("d")
    world.add("e")
    assert world.given() == {"worker 1": ["c", "d"]}
    world.scheduler.silent(world.workers[0], False)
    world.done(a)
    assert world.given() == {"worker 0": ["e"]}


def test_what_comes_while_a_call_is_under_way_waits_a_moment_for_others() -> None:
    world = World()
    world.add("a")
    assert world.given() == {"worker 0": ["a"]}
    world.add("b")
    assert world.given() == {}
    assert world.asks_again() == pytest.approx(GATHER_SECONDS)
    world.add("c")
    world.now += 2 * GATHER_SECONDS
    assert world.given() == {"worker 0": ["b", "c"]}
    assert world.asks_again() is None


def test_what_has_waited_goes_along_when_a_call_ends() -> None:
    world = World()
    a = world.add("a")
    world.given()
    world.add("b")
    world.done(a)
    assert world.given() == {"worker 0": ["b"]}


def test_a_closure_runs_where_its_argument_is() -> None:
    world = World(2)
    a, b = world.add("a"), world.add("b")
    world.run(a, b)
    world.add("of b", b)
    world.add("of a", a)
    assert world.given() == {"worker 0": ["of a"], "worker 1": ["of b"]}


def test_a_closure_waits_for_its_arguments() -> None:
    world = World(2)
    a = world.add("a")
    b = world.add("b", a)
    assert b.state is ClosureState.WAITING
    assert world.given() == {"worker 0": ["a"]}
    world.done(a)
    assert b.state is ClosureState.QUEUED
    assert world.given() == {"worker 0": ["b"]}


def test_what_a_full_place_cannot_run_is_brought_to_one_that_has_nothing_to_do() -> None:
    world = World(2, most_running=1)
    a = world.add("a")
    world.run(a)
    world.add("long", a)
    world.add("other", a)
    assert world.given() == {"worker 0": ["long"], "worker 1": ["other"]}


def test_the_number_of_queued_closures_is_bounded() -> None:
    world = World(most_queued=2)
    a = world.add("a")
    assert world.scheduler.has_room
    world.add("b")
    assert not world.scheduler.has_room
    world.run(a)
    assert world.scheduler.has_room


def test_after_an_error_all_others_are_cancelled_and_it_is_told_once() -> None:
    world = World(most_running=2)
    a, b, c = [world.add(name) for name in "abc"]
    d = world.add("d", c)
    world.given()
    error = ValueError("no")
    world.fail(a, error)
    assert (a.state, b.state, c.state, d.state) == (ClosureState.FAILED, *[ClosureState.CANCELLED] * 3)
    world.act()
    assert world.stopped == [b]
    assert isinstance(c.error, ClosureCancelledError)
    assert world.scheduler.take_errors() == [error]
    assert world.scheduler.take_errors() == []
    assert not world.scheduler.is_idle  # the worker has not answered for what was cancelled
    world.done(b)
    assert world.scheduler.is_idle
    assert b.state is ClosureState.CANCELLED


def test_what_runs_on_after_it_was_cancelled_is_waited_for_a_while() -> None:
    world = World()
    a, b = world.add("a"), world.add("b")
    world.given()
    assert world.scheduler.cancel(a)
    world.now += 4
    world.done(b)
    assert not world.scheduler.is_idle
    assert world.asks_again() == CANCELLED_SECONDS - 4
    world.now += CANCELLED_SECONDS - 4
    assert world.asks_again() is None
    assert world.scheduler.is_idle
    c = world.add("c")
    world.run(c)
    assert world.scheduler.is_idle
    world.scheduler.succeeded(a, world.workers[0], "a at worker 0")
    assert (a.state, a.held, world.scheduler.running) == (ClosureState.CANCELLED, {}, 0)


def test_what_runs_on_after_it_was_cancelled_loses_its_place() -> None:
    world = World(most_running=1)
    a, b = world.add("a"), world.add("b")
    assert world.given() == {"worker 0": ["a"]}
    world.scheduler.cancel(a)
    world.now += CANCELLED_SECONDS - 1
    assert world.given() == {}
    world.now += 1
    assert world.given() == {"worker 0": ["b"]}
    world.scheduler.failed(a, world.workers[0], ValueError("it has ended after all"))
    world.done(b)
    assert (world.scheduler.is_idle, world.scheduler.take_errors()) == (True, [])


def test_an_error_of_a_closure_that_was_cancelled_for_another_is_told_too() -> None:
    world = World()
    a, b = world.add("a"), world.add("b")
    world.given()
    first, second = ValueError("first"), ValueError("second")
    world.fail(a, first)
    world.fail(b, second)
    assert world.scheduler.take_errors() == [first, second]
    assert b.state is ClosureState.FAILED


def test_others_can_go_on_after_an_error_which_is_told_at_the_end() -> None:
    world = World(goes_on=True)
    a, b = world.add("a"), world.add("b")
    world.given()
    error = ValueError("no")
    world.fail(a, error)
    assert not world.scheduler.has_errors
    assert world.scheduler.take_errors() == []
    world.done(b)
    assert world.scheduler.take_errors() == [error]


def test_what_needs_a_failed_closure_fails_with_its_error_which_is_told_once() -> None:
    world = World(goes_on=True)
    a = world.add("a")
    b = world.add("b", a)
    c = world.add("c", b)
    error = ValueError("no")
    world.given()
    world.fail(a, error)
    assert {one.error for one in (a, b, c)} == {error}
    assert world.scheduler.take_errors() == [error]
    d = world.add("d", c)
    assert (d.state, d.error) == (ClosureState.FAILED, error)


def test_closures_of_a_lost_place_run_elsewhere_before_others() -> None:
    world = World(2, most_running=1)
    for name in "abc":
        world.add(name)
    assert world.given() == {"worker 0": ["a"], "worker 1": ["b"]}
    world.scheduler.lose_worker(world.workers[0], AWAY)
    world.done(next(iter(world.workers[1].running)))
    assert world.given() == {"worker 1": ["a"]}


def test_a_lost_value_is_rebuilt_only_when_it_is_needed_and_once() -> None:
    world = World()
    a = world.add("a")
    world.run(a)
    world.scheduler.lose_worker(world.workers[0], AWAY)
    world.join(1)
    assert a.state is ClosureState.LOST
    assert world.given() == {}
    assert world.scheduler.is_idle
    world.scheduler.need(a)
    world.scheduler.need(a)
    assert world.given() == {"worker 1": ["a"]}


def test_what_a_lost_value_was_made_of_is_rebuilt_first() -> None:
    world = World()
    a = world.add("a")
    b = world.add("b", a)
    c = world.add("c", b)
    for closure in (a, b):
        world.run(closure)
    world.scheduler.lose_worker(world.workers[0], AWAY)
    world.join(1)
    for closure in (a, b, c):
        assert world.given() == {"worker 1": [closure.name]}
        world.done(closure)
    assert c.state is ClosureState.READY


def test_a_value_that_has_been_copied_is_not_lost() -> None:
    world = World()
    a = world.add("a")
    world.run(a)
    world.copied(a)
    world.scheduler.lose_worker(world.workers[0], AWAY)
    world.join(1)
    assert a.is_there
    world.add("b", a)
    assert world.given() == {"worker 1": ["b"]}


def test_what_may_not_be_repeated_is_an_error_when_it_was_lost() -> None:
    world = World(goes_on=True)
    a, b = world.add("a", repeatable=False), world.add("b", repeatable=False)
    world.run(a)
    world.given()
    world.scheduler.lose_worker(world.workers[0], AWAY)
    assert isinstance(b.error, WorkerUnavailableError)  # it was running
    assert a.state is ClosureState.LOST  # it was ready, and nothing asks for it
    world.scheduler.need(a)
    for error in (a.error, b.error):
        assert "cannot be rebuilt: the call was scheduled with repeatable=False. Fetch" in str(error)


def test_a_closure_that_ends_workers_is_found_out_and_others_go_on() -> None:
    world = World(goes_on=True)
    bad, good = world.add("bad"), world.add("good")
    for index in range(1, 10):
        given = world.given()
        if not given:
            break
        [worker] = world.scheduler.workers
        if bad in worker.running:
            world.scheduler.lose_worker(worker, AWAY)
            world.join(index)
        else:
            world.done(good)
    assert isinstance(bad.error, LostWorkersError)
    assert good.state in (ClosureState.READY, ClosureState.LOST)  # it has run, and other workers were lost after that


def test_a_worker_that_was_gone_before_is_no_fault_of_what_it_was_given() -> None:
    world = World(goes_on=True)
    unlucky = world.add("unlucky")
    for index in range(1, 10):
        world.given()
        [worker] = world.scheduler.workers
        world.scheduler.lose_worker(worker, AWAY, at_work=False)
        world.join(index)
    world.given()
    assert unlucky.state is ClosureState.RUNNING


def test_what_fails_at_a_place_that_is_lost_runs_elsewhere() -> None:
    world = World(goes_on=True)
    closure = world.add("a")
    world.given()
    [worker] = world.scheduler.workers
    world.scheduler.lose_worker(worker, AWAY)
    world.scheduler.failed(closure, worker, ValueError("its executor is closed"))
    world.join(1)
    world.given()
    assert closure.state is ClosureState.RUNNING


def test_a_value_is_dropped_when_neither_its_caller_nor_a_closure_needs_it() -> None:
    world = World()
    a = world.add("a")
    b = world.add("b", a)
    world.scheduler.drop(a)
    world.run(a)
    assert a.held
    world.run(b)
    assert not a.held
    assert world.scheduler.values == 1
    world.scheduler.drop(b)
    assert world.scheduler.values == 0


def test_a_dropped_value_is_rebuilt_for_what_was_made_of_it() -> None:
    world = World()
    a = world.add("a")
    b = world.add("b", a)
    world.scheduler.drop(a)
    world.run(a)
    world.run(b)
    world.scheduler.lose_worker(world.workers[0], AWAY)
    world.join(1)
    world.scheduler.need(b)
    assert world.given() == {"worker 1": ["a"]}
    world.done(a)
    assert world.given() == {"worker 1": ["b"]}


def test_a_value_at_the_end_of_a_long_chain_is_not_rebuilt_and_the_error_says_why() -> None:
    world = World(goes_on=True)
    last = world.add("0")
    world.run(last)
    for number in range(MOST_DEPTH):
        last = world.add(f"{number + 1}", last)
        world.run(last)
    world.scheduler.lose_worker(world.workers[0], AWAY)
    world.scheduler.need(last)
    assert "cannot be rebuilt: this would repeat a chain of more than 1000 calls" in str(last.error)


def test_one_closure_can_be_cancelled_and_what_needs_it_is_too() -> None:
    world = World()
    a = world.add("a")
    b = world.add("b", a)
    c = world.add("c")
    assert world.scheduler.cancel(a)
    assert not world.scheduler.cancel(a)
    assert (a.state, b.state, c.state) == (ClosureState.CANCELLED, ClosureState.CANCELLED, ClosureState.QUEUED)
    assert not world.scheduler.has_errors
    assert world.given() == {"worker 0": ["c"]}


def test_without_any_place_all_fail_once_nobody_waits_any_more() -> None:
    world = World(0)
    a = world.add("a")
    b = world.add("b", a)
    world.scheduler.gave_up(AWAY)
    assert (a.error, b.error) == (AWAY, AWAY)
    assert (a.state, b.state) == (ClosureState.FAILED, ClosureState.FAILED)
    assert world.scheduler.take_errors() == [AWAY]
    world.act()
    assert world.notified == [a, b]
    assert world.scheduler.is_idle


def test_who_gives_up_waiting_for_places_is_told_what_ran_where_they_were_lost() -> None:
    world = World(2)
    world.add("a")
    for worker, name in zip(world.workers, ("beside it", "never ran"), strict=True):
        world.given()
        world.scheduler.lose_worker(worker, AWAY)
        world.add(name)
    error = NoWorkersError("none is ready:\n  worker 0: away")
    world.scheduler.gave_up(error)
    told = (
        "\n  these calls were running on workers that were lost, and may have caused the losses: 'a' (2 times), "
        "'beside it' (1 time)"
    )
    assert str(error) == f"none is ready:\n  worker 0: away{told}"


def test_errors_are_told_once_and_at_once_unless_others_go_on() -> None:
    world = World()
    assert not world.scheduler.goes_on
    assert not world.scheduler.has_errors
    error = ValueError("no")
    a = world.add("a")
    world.given()
    world.fail(a, error)
    world.add("b")
    assert world.scheduler.has_errors
    assert world.scheduler.take_errors() == [error]
    assert not world.scheduler.has_errors


def test_where_others_go_on_errors_are_told_when_all_have_ended() -> None:
    world = World(goes_on=True)
    assert world.scheduler.goes_on
    error = ValueError("no")
    a = world.add("a")
    world.given()
    world.fail(a, error)
    assert world.scheduler.has_errors
    assert world.scheduler.take_errors() == [error]
    assert not world.scheduler.has_errors


def test_what_ended_and_what_was_cancelled_is_told_once() -> None:
    world = World(most_running=2)
    a, b, c = [world.add(name) for name in "abc"]
    d = world.add("d", c)
    world.given()
    world.done(a)
    world.scheduler.cancel(b)
    world.scheduler.cancel(c)
    for _ in range(2):
        world.act()
        assert world.notified == [a, b, c, d]
        assert world.stopped == [b]


def test_a_closure_that_its_caller_cancelled_has_no_error_to_tell() -> None:
    world = World()
    a, b = world.add("a"), world.add("b")
    world.given()
    world.scheduler.cancel(a)
    world.fail(a, ValueError("no"))
    world.scheduler.cancel(b)
    world.done(b)
    c = world.add("c", a)
    assert {one.state for one in (a, b, c)} == {ClosureState.CANCELLED}
    assert not world.scheduler.has_errors
    assert world.scheduler.values == 0


def test_a_closure_that_has_ended_without_a_value_keeps_nothing_of_its_call() -> None:
    world = World(goes_on=True)
    a = world.add("a")
    b, c = world.add("b", a), world.add("c", a)
    world.scheduler.cancel(c)
    assert list(a.dependents) == [b]
    world.given()
    world.fail(a, ValueError("no"))
    for closure in (a, b, c):
        assert (closure.call, closure.needs, dict(closure.dependents)) == (None, (), {})


@pytest.mark.parametrize("how", ["prefetched", "copied", "not repeatable"])
def test_a_closure_that_will_not_run_again_keeps_nothing_of_its_call(how: str) -> None:
    world = World()
    a = world.add("a")
    world.run(a)
    b = world.add("b", a, repeatable=how != "not repeatable", prefetch=how == "prefetched")
    world.run(b)
    if how != "not repeatable":
        assert (b.call, b.needs) == ("a call", (a,))
        world.copied(b)
    assert (b.call, b.needs) == (None, ())


def test_a_value_that_nobody_wants_any_more_is_dropped_as_soon_as_it_is_there() -> None:
    world = World()
    a = world.add("a")
    world.given()
    world.scheduler.drop(a)
    world.done(a)
    assert (a.held, world.scheduler.values, world.scheduler.is_idle) == ({}, 0, True)


def test_a_value_stays_for_its_caller_when_those_that_needed_it_have_ended() -> None:
    world = World()
    a = world.add("a")
    world.run(a)
    b, c = world.add("b", a), world.add("c", a, a)
    world.scheduler.cancel(b)
    world.run(c)
    assert (a.state, world.scheduler.values) == (ClosureState.READY, 2)
    world.scheduler.drop(a)
    assert world.scheduler.values == 1
