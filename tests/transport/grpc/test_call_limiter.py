"""Calls take turns, and none waits for ever for its own."""

import asyncio

import pytest

from fedstack.errors import DeadlineExceededError
from fedstack.foundations.deadline import Deadline
from fedstack.testing.simulation.virtual_loop import VirtualLoop
from fedstack.transport.grpc import grpc_calls
from fedstack.transport.grpc.grpc_calls import CallLimiter

WALL = 10.0


async def test_so_many_calls_go_at_once_and_the_others_after_them():
    turns = CallLimiter(2)
    running, most, done = 0, 0, asyncio.Event()

    async def call():
        nonlocal running, most
        async with turns.turn(WALL, "h:1"):
            running += 1
            most = max(most, running)
            if running == 2:
                done.set()
            await asyncio.wait_for(done.wait(), WALL)
            running -= 1

    await asyncio.wait_for(asyncio.gather(*[call() for _ in range(10)]), WALL)
    assert (running, most) == (0, 2)


async def test_a_call_that_waits_gives_up_when_nobody_is_answered():
    turns = CallLimiter(1)
    async with turns.turn(WALL, "h:1"):
        with pytest.raises(DeadlineExceededError, match="h:1 answered none of the preceding calls within 0.05 sec"):
            async with turns.turn(0.05, "h:1"):
                raise AssertionError("it has got a turn")
    async with turns.turn(0.05, "h:1"):
        pass


def test_a_call_goes_on_waiting_as_long_as_others_are_answered():
    answers = 0

    async def work():
        nonlocal answers
        turns = CallLimiter(1, asyncio.get_running_loop().time)
        async with turns.turn(WALL, "h:1"):

            async def wait():
                async with turns.turn(0.2, "h:1"):
                    return answers

            waiting = asyncio.ensure_future(wait())
            for _ in range(8):
                await asyncio.sleep(0.05)
                turns.answered()
                answers += 1
            assert not waiting.done()
        return await waiting

    loop = VirtualLoop()  # a slow machine is late for each of them
    try:
        assert loop.run_until_complete(work()) == 8
    finally:
        loop.close()


async def test_a_call_that_is_cancelled_takes_no_turn_with_it():
    turns = CallLimiter(1)
    async with turns.turn(WALL, "h:1"):

        async def wait():
            async with turns.turn(WALL, "h:1"):
                raise AssertionError("it has got a turn")

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with turns.turn(0.05, "h:1"):
        pass


async def test_a_call_whose_turn_comes_when_its_time_is_over_takes_it(monkeypatch: pytest.MonkeyPatch):
    class Late(Deadline):
        async def wait(self, work, late=asyncio.TimeoutError):
            """The work ends after the step in which its time was over."""
            await work
            raise late()

    turns = CallLimiter(1)
    monkeypatch.setattr(grpc_calls, "Deadline", Late)

    async def wait():
        async with turns.turn(WALL, "h:1"):
            return "here"

    async with turns.turn(WALL, "h:1"):
        waiting = asyncio.ensure_future(wait())
        for _ in range(3):
            await asyncio.sleep(0)
    assert await asyncio.wait_for(waiting, WALL) == "here"


@pytest.mark.parametrize("steps", range(8))
async def test_a_call_that_is_cancelled_when_its_turn_comes_leaves_it_to_others(steps: int):
    turns = CallLimiter(1)

    async def wait():
        async with turns.turn(WALL, "h:1"):
            pass

    async with turns.turn(WALL, "h:1"):
        waiting = asyncio.ensure_future(wait())
        for _ in range(3):
            await asyncio.sleep(0)
    for _ in range(steps):
        await asyncio.sleep(0)
    cancels = waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled() == cancels
    async with turns.turn(WALL, "h:1"):
        pass
