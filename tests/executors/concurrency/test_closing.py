"""Blocks of what can be closed: the last one closes it, and an event loop goes on meanwhile."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedstack.errors import ClosedError
from fedstack.executors.concurrency.closing import ClosesOnExit

LIMIT = 20.0


class Door(ClosesOnExit):
    """Counts how often it is closed; closing takes until it may."""

    def __init__(self, *, failure: Exception | None = None) -> None:
        self.closed = 0
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.failure = failure

    async def _connected(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.begun.set()
        assert self.may_end.wait(LIMIT)
        self._closed = True
        self.closed += 1


async def test_the_end_of_an_async_block_waits_for_the_closing_and_blocks_no_loop():
    door = Door()
    door.may_end.clear()

    async def enter():
        async with door as given:
            assert given is door

    entered = asyncio.ensure_future(enter())
    assert await asyncio.to_thread(door.begun.wait, LIMIT)
    assert not entered.done()
    door.may_end.set()
    await asyncio.wait_for(entered, LIMIT)
    assert door.closed == 1


async def test_a_block_that_is_cancelled_at_its_end_closes_all_the_same():
    door, others = Door(), [Door() for _ in range(4)]
    for other in others:
        other.may_end.clear()  # they have all threads that close things

    async def enter(one):
        async with one:
            pass

    busy = [asyncio.ensure_future(enter(other)) for other in others]
    for other in others:
        assert await asyncio.to_thread(other.begun.wait, LIMIT)
    waiting = asyncio.ensure_future(enter(door))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert door.closed >= 1
    for other in others:
        other.may_end.set()
    await asyncio.gather(*busy)


async def test_what_cannot_be_entered_is_closed_unless_another_block_has_it():
    door = Door(failure=ConnectionError("nobody there"))
    with door:
        with pytest.raises(ConnectionError):
            await door.__aenter__()
        assert not door.closed
    assert door.closed == 1
    alone = Door(failure=ConnectionError("nobody there"))
    with pytest.raises(ConnectionError):
        await alone.__aenter__()
    assert alone.closed == 1


def test_the_last_of_many_blocks_on_many_threads_closes():
    door, everybody = Door(), threading.Barrier(8)

    def enter():
        with door, door:
            everybody.wait(LIMIT)
            assert not door.closed

    with ThreadPoolExecutor(8) as threads:
        for work in [threads.submit(enter) for _ in range(8)]:
            work.result(LIMIT)
    assert door.closed >= 1
    with pytest.raises(ClosedError, match="This Door is closed; create a new one"), door:
        pass


def test_a_block_that_nothing_has_begun_closes():
    door = Door()
    door.__exit__(None, None, None)
    assert door.closed == 1
