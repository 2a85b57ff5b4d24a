"""Timers are due in their order, those that have ended never, and none of it keeps a loop."""

import asyncio
import gc
import weakref

from fedstack.foundations.deadline import timers_on
from fedstack.testing.simulation.virtual_loop import VirtualLoop

LONG = 3600.0
LIMIT = 20


async def test_timers_are_due_in_the_order_of_their_times_and_not_of_their_making():
    loop, made, done = asyncio.get_running_loop(), [], asyncio.Event()
    begun = loop.time()
    for tick in (3, 1, 2, 1):
        timers_on(loop).call_at(begun + tick / 100, lambda tick=tick: made.append((tick, loop.time() - begun)))
    timers_on(loop).call_at(begun + 0.04, done.set)
    await asyncio.wait_for(done.wait(), LIMIT)
    assert [tick for tick, _ in made] == [1, 1, 2, 3]
    assert all(late >= tick / 100 - 0.001 for tick, late in made)


async def test_a_timer_that_has_ended_calls_nothing_and_those_after_it_do():
    loop, made, done = asyncio.get_running_loop(), [], asyncio.Event()
    timer = timers_on(loop).call_at(loop.time() + 0.01, lambda: made.append("ended"))
    timers_on(loop).call_at(loop.time() + 0.02, done.set)
    timer.end()
    timer.end()
    await asyncio.wait_for(done.wait(), LIMIT)
    assert made == []


async def test_what_a_timer_calls_may_make_and_end_others():
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    other = timers_on(loop).call_at(loop.time() + 0.01, lambda: 1 / 0)

    def call() -> None:
        other.end()
        timers_on(loop).call_at(loop.time() + 0.01, done.set)

    timers_on(loop).call_at(loop.time(), call)
    await asyncio.wait_for(done.wait(), LIMIT)


async def test_a_shorter_time_does_not_wait_for_a_longer_one():
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    long = timers_on(loop).call_at(loop.time() + LONG, lambda: None)
    timers_on(loop).call_at(loop.time() + 0.01, done.set)
    await asyncio.wait_for(done.wait(), LIMIT)
    long.end()


async def test_timers_that_have_ended_are_dropped_long_before_they_would_be_due():
    loop = asyncio.get_running_loop()

    class Held:
        def call(self) -> None:
            pass

    held = [Held() for _ in range(10_000)]
    known = [weakref.ref(one) for one in held]
    for one in held:
        timers_on(loop).call_at(loop.time() + LONG, one.call).end()
    timers = timers_on(loop)
    assert len(timers._timers) < 1000
    held.clear()
    del one
    gc.collect()
    assert not any(one() for one in known)


def test_a_loop_that_is_closed_with_timers_is_dropped_with_them():
    loop = asyncio.new_event_loop()
    timers_on(loop).call_at(loop.time() + LONG, loop.stop)
    loop.close()
    known = weakref.ref(loop)
    del loop
    gc.collect()
    assert known() is None


def test_a_timer_that_is_set_again_for_a_time_that_has_come_leaves_the_loop_its_turn() -> None:
    loop = VirtualLoop()
    turns: list[float] = []

    def again() -> None:
        turns.append(loop.time())
        if len(turns) < 5:
            timers_on(loop).call_at(when, again)
        else:
            loop.stop()

    when = 1.0
    timers_on(loop).call_at(when, again)
    loop.call_at(when, lambda: turns.append(-1.0))
    loop.run_forever()
    loop.close()
    assert turns[:3] != [1.0, 1.0, 1.0]
    assert -1.0 in turns[:3]
