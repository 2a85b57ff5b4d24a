"""What runs on the loop of the connections, and who waits for it."""

import asyncio
import concurrent.futures
import gc
import threading

import pytest

from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.testing.simulation.virtual_loop import VirtualLoop
from fedstack.transport.peers.io_loop import IoLoop, Ticks, io_loop

LIMIT_SECONDS = 20


async def nothing():
    pass


@pytest.fixture(scope="module", autouse=True)
def started_loop():
    """The thread of the loop stays, as it is for the whole process."""
    io_loop.run_sync(nothing(), LIMIT_SECONDS)


@pytest.mark.parametrize("where", ["loop", "thread"])
@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_an_error_that_comes_while_the_caller_is_cancelled_is_not_reported_by_asyncio(
    where, turns, cancelled_first
):
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    begun, released = threading.Event(), threading.Event()
    threads = LeafThreads(1)

    def fail():
        begun.set()
        assert released.wait(LIMIT_SECONDS)
        raise ValueError("late")

    async def fail_there():
        fail()

    def let_it_fail():
        """Returns when the error is there, and nobody here knows of it yet: this loop stands still meanwhile."""
        released.set()
        if where == "loop":
            for _ in range(2):
                io_loop.run_sync(nothing(), LIMIT_SECONDS)
        else:
            threads.submit(lambda: None).result(LIMIT_SECONDS)

    waiting = asyncio.ensure_future(io_loop.run(fail_there()) if where == "loop" else threads.run(fail))
    await asyncio.sleep(0)
    assert begun.wait(LIMIT_SECONDS)
    if cancelled_first:
        waiting.cancel()
        let_it_fail()
    else:
        let_it_fail()
        for _ in range(turns):  # of the loop, in which the error gets nearer to the caller
            await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises((asyncio.CancelledError, ValueError)):
        await waiting
    del waiting
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)
    threads.close()
    assert reported == []


async def test_an_error_reaches_the_caller():
    async def fail():
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        await io_loop.run(fail())


def test_a_coroutine_can_be_submitted_from_a_thread_and_its_outcome_asked_for_later():
    async def fail():
        raise ValueError("told")

    slept, failed = io_loop.submit(asyncio.sleep(0, "slept")), io_loop.submit(fail())
    assert slept.result(LIMIT_SECONDS) == "slept"
    assert isinstance(failed.exception(LIMIT_SECONDS), ValueError)
    assert not slept.cancel()


def test_a_submitted_coroutine_that_is_cancelled_has_ended_when_its_future_says_so():
    begun, steps = threading.Event(), []

    async def work():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    future = io_loop.submit(work())
    assert begun.wait(LIMIT_SECONDS)
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(LIMIT_SECONDS)
    assert steps == ["ended"]
    assert future.done()
    assert not future.cancel()


def test_a_submitted_coroutine_may_be_cancelled_before_its_first_step():
    held = threading.Event()
    io_loop.call_soon(lambda: held.wait(LIMIT_SECONDS))
    future = io_loop.submit(asyncio.sleep(LIMIT_SECONDS))
    assert future.cancel()
    held.set()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(LIMIT_SECONDS)


def test_a_loop_whose_thread_cannot_be_started_says_so_and_works_when_there_is_room_again(thread_starts):
    loop = IoLoop()
    for _ in range(2):
        with pytest.raises(ResourceLimitError, match="cannot start another thread: can't start new"):
            loop.run_sync(nothing(), LIMIT_SECONDS)
    thread_starts.left = 1
    assert loop.run_sync(asyncio.sleep(0, "slept"), LIMIT_SECONDS) == "slept"
    served, ended = loop.loop, threading.Event()

    def end() -> None:
        ended.set()
        served.stop()

    loop.call_soon(end)
    assert ended.wait(LIMIT_SECONDS)
    while served.is_running():
        threading.Event().wait(0.001)
    served.close()


def test_what_is_called_at_ticks_shares_one_timer_until_nothing_is_left():
    ticks, called = Ticks(), []
    calls = [lambda index=index: called.append(index) for index in range(3)]

    async def work():
        for call in calls:
            ticks.add(call)
        await asyncio.sleep(0.3)
        assert called == [0, 1, 2]
        ticks.discard(calls[1])
        ticks.discard(calls[1])
        await asyncio.sleep(0.25)
        assert called == [0, 1, 2, 0, 2]
        for call in calls:
            ticks.discard(call)
        ticks.add(calls[1])  # while the timer runs
        await asyncio.sleep(0.5)
        assert called == [0, 1, 2, 0, 2, 1, 1]
        ticks.discard(calls[1])
        await asyncio.sleep(0.5)
        assert not loop._scheduled
        assert len(called) == 7

    loop = VirtualLoop()
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()
