"""Lazy once: what runs at most once, and whose outcome is kept."""

import asyncio
import threading

import pytest

from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.lazy_task import LazyTask
from fedstack.executors.concurrency.leaf_threads import LeafThreads


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


class Blocked:
    """Work for a thread, which waits until it may go on."""

    def __init__(self, outcome: object = 1) -> None:
        self.outcome = outcome
        self.starts = 0
        self.go = threading.Event()

    def __call__(self) -> object:
        self.starts += 1
        assert self.go.wait(20)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def test_all_who_wait_share_what_a_thread_does():
    work, never = Blocked(), Work()
    once = LazyTask(never)
    outcome = once.begin_on(LeafThreads(), work)
    tasks = await waiters(once, 2)
    assert once.has_begun
    assert not once.done
    work.go.set()
    assert await asyncio.gather(outcome, *tasks) == [1, 1, 1]
    assert once.done
    assert await once.get() == 1
    assert (work.starts, never.starts) == (1, 0)


async def test_an_error_of_a_thread_is_kept_and_raised_each_time():
    work = Blocked(ValueError("no"))
    once = LazyTask(Work())
    outcome = once.begin_on(LeafThreads(), work)
    work.go.set()
    with pytest.raises(ValueError, match="no"):
        await outcome
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await once.get()
    assert work.starts == 1


async def test_each_who_waits_for_a_thread_gets_an_error_of_its_own():
    work = Blocked(InvalidValueError("no"))
    once = LazyTask(Work())
    outcome = once.begin_on(LeafThreads(), work)
    tasks = await waiters(once, 2)
    work.go.set()
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert (str(first), str(second)) == ("no", "no")
    assert first is not second
    assert isinstance(outcome.exception(), InvalidValueError)


async def test_cancelling_one_of_two_who_wait_for_a_thread_leaves_it_alone():
    work, never = Blocked(), Work()
    once = LazyTask(never)
    outcome = once.begin_on(LeafThreads(), work)
    (other,) = await waiters(once, 1)
    outcome.cancel()
    await asyncio.sleep(0)
    work.go.set()
    assert await other == 1
    assert (work.starts, never.starts) == (1, 0)


async def test_cancelling_the_last_who_waits_for_a_thread_gives_it_up_and_it_can_start_anew():
    work, again = Blocked(), Work(2)
    again.go.set()
    once = LazyTask(again)
    outcome = once.begin_on(LeafThreads(), work)
    (other,) = await waiters(once, 1)
    outcome.cancel()
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    assert not once.has_begun
    work.go.set()
    assert await once.get() == 2
