"""The pool of leaf threads."""

import asyncio
import threading

import pytest

from fedstack.errors import ClosedError
from fedstack.executors.leaf_threads import LeafThreads, run_inline

LIMIT = 10.0


def test_as_many_pieces_of_work_run_at_once_as_there_are_threads():
    threads = LeafThreads(4)
    barrier = threading.Barrier(4)
    futures = [threads.submit(lambda: barrier.wait(LIMIT)) for _ in range(4)]
    assert sorted(future.result(LIMIT) for future in futures) == [0, 1, 2, 3]
    threads.close()


def test_work_beyond_the_bound_waits_for_a_thread():
    threads = LeafThreads(1)
    release = threading.Event()
    first = threads.submit(lambda: release.wait(LIMIT))
    second = threads.submit(threading.get_ident)
    assert not second.done()
    release.set()
    assert first.result(LIMIT)
    assert second.result(LIMIT)
    threads.close()


def test_a_thread_is_used_again_and_again():
    threads = LeafThreads(8)
    idents = {threads.submit(threading.get_ident).result(LIMIT) for _ in range(50)}
    assert len(idents) <= 8
    threads.close()


def test_an_idle_thread_ends_after_a_while_and_work_after_that_is_still_done():
    threads = LeafThreads(2, idle_seconds=0.01)
    for _ in range(20):
        worker = threads.submit(threading.current_thread).result(LIMIT)
        worker.join(LIMIT)
        assert not worker.is_alive()
    threads.close()


def test_many_submitters_lose_no_work_while_threads_come_and_go():
    threads = LeafThreads(3, idle_seconds=0.0005)
    done = []

    def submit():
        for _ in range(200):
            threads.submit(lambda: done.append(1)).result(LIMIT)

    submitters = [threading.Thread(target=submit) for _ in range(4)]
    for submitter in submitters:
        submitter.start()
    for submitter in submitters:
        submitter.join(60)
    assert len(done) == 800
    threads.close()


def test_submit_raises_closed_error_after_close():
    threads = LeafThreads()
    threads.close()
    threads.close()
    with pytest.raises(ClosedError, match="found them closed"):
        threads.submit(lambda: None)


async def test_run_does_not_block_the_event_loop():
    threads = LeafThreads()
    release = threading.Event()
    waiting = asyncio.ensure_future(threads.run(lambda: release.wait(LIMIT)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(release.set)
    assert await asyncio.wait_for(waiting, LIMIT)
    threads.close()


async def test_a_cancelled_run_tells_its_work_and_makes_room_for_another_thread():
    threads = LeafThreads(1)
    release, begun, told = threading.Event(), threading.Event(), threading.Event()

    def work():
        begun.set()
        release.wait(LIMIT)

    task = asyncio.ensure_future(threads.run(work, told.set))
    await asyncio.to_thread(begun.wait, LIMIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.is_set()
    assert await asyncio.wait_for(threads.run(lambda: "another thread"), LIMIT) == "another thread"
    release.set()
    threads.close()


async def test_work_runs_on_the_callers_thread_where_that_is_allowed():
    threads = LeafThreads()
    with run_inline():
        assert await threads.run(threading.get_ident) == threading.get_ident()
    assert await threads.run(threading.get_ident) != threading.get_ident()
    threads.close()
