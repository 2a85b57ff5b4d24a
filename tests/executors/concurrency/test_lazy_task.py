"""Lazy once: what runs at most once, and whose outcome is kept."""

import asyncio

import pytest

from fedstack.executors.concurrency.coroutines import LazyTask


class Work:
    def __init__(self, outcome=1):
        self.outcome = outcome
        self.starts = 0
        self.cancelled = 0
        self.go = asyncio.Event()

    async def __call__(self):
        self.starts += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def waiters(once, count):
    tasks = [asyncio.ensure_future(once.get()) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_nothing_runs_before_somebody_asks():
    work = Work()
    once = LazyTask(work)
    assert not once.done
    assert work.starts == 0


async def test_all_who_wait_share_one_run():
    work = Work()
    once = LazyTask(work)
    tasks = await waiters(once, 3)
    work.go.set()
    assert await asyncio.gather(*tasks) == [1, 1, 1]
    assert await once.get() == 1
    assert work.starts == 1


async def test_an_error_is_kept_and_raised_each_time():
    work = Work(ValueError("no"))
    work.go.set()
    once = LazyTask(work)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await once.get()
    assert work.starts == 1


async def test_cancelling_one_of_two_who_wait_leaves_the_run_alone():
    work = Work()
    once = LazyTask(work)
    first, second = await waiters(once, 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert work.cancelled == 0
    work.go.set()
    assert await second == 1


async def test_cancelling_the_last_who_waits_cancels_the_run_and_it_can_start_anew():
    work = Work()
    once = LazyTask(work)
    (only,) = await waiters(once, 1)
    only.cancel()
    with pytest.raises(asyncio.CancelledError):
        await only
    assert work.cancelled == 1
    work.go.set()
    assert await once.get() == 1
    assert work.starts == 2
