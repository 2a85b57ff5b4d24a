"""Work for others: a task or a job of a thread, heartbeats while it goes on, an end when its time is over."""

import asyncio
import gc
import threading

import pytest

from fedstack.errors import ClosedError, DeadlineExceededError
from fedstack.executors.concurrency.coroutines import need_event_loop, runs_inline
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.worker.work import Work
from fedstack.transport.wire.frames import Heartbeat

WALL = 20.0


async def _thread() -> "tuple[int, bool]":
    await need_event_loop()
    return threading.get_ident(), runs_inline()


async def ended(work: Work[object], seconds: float = 0.0) -> list[Heartbeat]:
    """Waits for work, and returns what it told meanwhile."""
    return [beat async for beat in work.beats(ProgressCounts(), WALL, seconds)]


async def test_work_is_a_task_of_the_loop_or_a_job_of_a_thread_that_waits_for_nothing():
    here, threads = threading.get_ident(), LeafThreads(1)
    task, job = Work(_thread()), Work(_thread(), threads)
    assert await ended(task) == await ended(job) == []
    assert task.result() == (here, False)
    ident, inline = job.result()
    assert ident != here
    assert inline
    threads.close()


@pytest.mark.filterwarnings("error")
async def test_work_that_never_begins_leaves_nothing():
    threads, gate = LeafThreads(1), threading.Event()

    async def waits() -> None:
        gate.wait(WALL)

    first, second = Work(waits(), threads), Work(_thread(), threads)
    with pytest.raises(DeadlineExceededError):
        await ended(second, 0.01)
    gate.set()
    await ended(first)
    threads.close()
    with pytest.raises(ClosedError):
        Work(_thread(), threads)
    del second
    gc.collect()


async def test_a_heartbeat_comes_now_and_then_until_work_is_done():
    done = asyncio.Event()
    work = Work(done.wait())
    async for beat in work.beats(ProgressCounts(), 0.001):
        assert (beat.done, beat.running) == (0, 0)
        done.set()
    assert work.result()


async def test_work_ends_when_nobody_listens_any_more():
    cancelled = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    listening = Work(waits()).beats(ProgressCounts(), 0.001)
    await anext(listening)
    await listening.aclose()
    assert cancelled.is_set()


@pytest.mark.parametrize("on_a_thread", [False, True])
async def test_late_work_is_ended(on_a_thread: bool):
    threads, gate, cancelled = LeafThreads(1), threading.Event(), asyncio.Event()

    async def works() -> None:
        gate.wait(WALL)

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(DeadlineExceededError, match="end within 0.01 seconds"):
        await ended(Work(works(), threads) if on_a_thread else Work(waits()), 0.01)
    assert cancelled.is_set() is not on_a_thread
    gate.set()
    threads.close()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
async def test_what_is_no_positive_number_is_any_time(seconds: float):
    work = Work(asyncio.sleep(0, "done"))
    assert await ended(work, seconds) == []
    assert work.result() == "done"
