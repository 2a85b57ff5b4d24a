"""The event loop of simulations: its clock, its order, and what it does where nothing is left to do."""

import asyncio
import time

import pytest

from fedstack.testing.simulation.virtual_loop import SpinningError, StuckError, VirtualLoop


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_a_day_of_waiting_takes_no_time(loop):
    begin = time.monotonic()
    loop.run_until_complete(asyncio.sleep(86_400))
    assert loop.time() == pytest.approx(86_400)
    assert time.monotonic() - begin < 60


def test_timers_run_in_order_and_those_of_one_time_in_the_order_of_their_calls(loop):
    ran = []
    for name, seconds in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        loop.call_later(seconds, ran.append, name)
    loop.run_until_complete(asyncio.sleep(3))
    assert ran == ["first", "second", "late"]


def test_the_clock_stands_still_while_there_is_something_to_do(loop):
    async def work():
        for _ in range(1000):
            await asyncio.sleep(0)
        return loop.time()

    assert loop.run_until_complete(work()) == 0


def test_waiting_for_what_nobody_does_is_an_error(loop):
    async def wait():
        await asyncio.sleep(1.5)
        await loop.create_future()

    task = loop.create_task(wait())
    with pytest.raises(StuckError, match=r"found none after 1\.500 simulated seconds"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_a_time_comes_however_little_is_left_until_then(loop):
    async def wait_until(due):
        for _ in range(10):
            if loop.time() >= due:
                return
            await asyncio.sleep(due - loop.time())
        raise AssertionError(f"it is {loop.time()!r}, and was to be {due!r}")

    async def wait():
        for number in range(1, 2000):
            await wait_until(number / 7 + 0.1)

    loop.run_until_complete(wait())


def test_a_clock_that_never_goes_on_is_an_error(loop):
    async def spin():
        await asyncio.sleep(2.5)
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    task = loop.create_task(spin())
    with pytest.raises(SpinningError, match=r"clock to advance, found it at 2\.500 seconds"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
