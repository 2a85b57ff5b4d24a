"""The pool of leaf threads."""

import asyncio
import gc
import threading
import time
import weakref

import attrs
import federated_language as fl
import numpy as np
import pytest
from await_until import await_until

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import WorkScope, current_scope, set_scope
from fedstack.contexts import AsyncExecutionContext
from fedstack.errors import ClosedError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.concurrency import leaf_threads
from fedstack.executors.concurrency.coroutines import RunInline
from fedstack.executors.concurrency.jobs import AbandonedWork, Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.thread_pool import count_threads, waiting

LIMIT = 10.0


class Held:
    """Work that waits until the test lets it end."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.end.wait(LIMIT)
        return "held"


def test_as_many_pieces_of_work_run_at_once_as_there_are_threads():
    threads = LeafThreads(4)
    barrier = threading.Barrier(4)
    futures = [threads.submit(lambda: barrier.wait(LIMIT)) for _ in range(4)]
    assert sorted(future.result(LIMIT) for future in futures) == [0, 1, 2, 3]
    threads.close()


def test_threads_without_work_all_come_for_pieces_that_wait_for_each_other():
    """Only one of them is woken by whoever hands in work; it wakes the next."""
    threads = LeafThreads(8)
    barrier = threading.Barrier(8)
    for _ in range(20):
        futures = [threads.submit(lambda: barrier.wait(LIMIT)) for _ in range(8)]
        assert sorted(future.result(LIMIT) for future in futures) == list(range(8))
    threads.close()


def test_threads_that_end_for_lack_of_work_and_work_that_comes_then_do_not_miss_each_other():
    threads = LeafThreads(4, idle_seconds=0.0005)
    for count in range(300):
        futures = [threads.submit(lambda: "done") for _ in range(1 + count % 4)]
        assert [future.result(LIMIT) for future in futures] == ["done"] * len(futures)
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
    with pytest.raises(ClosedError, match="executor is closed"):
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
    with RunInline():
        assert await threads.run(threading.get_ident) == threading.get_ident()
    assert await threads.run(threading.get_ident) != threading.get_ident()
    threads.close()


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), MemoryError()], ids=repr)
def test_work_for_which_no_thread_can_be_started_fails_and_works_when_there_is_room_again(thread_starts, failure):
    threads = LeafThreads(2)
    thread_starts.failure = failure
    for _ in range(5):
        future = threads.submit(lambda: "done")
        with pytest.raises(ResourceLimitError, match=r"cannot start another thread: .*ulimit -u"):
            future.result(LIMIT)
    assert repr(threads) == "<LeafThreads 0 threads, at most 2>"
    thread_starts.left = 2
    barrier = threading.Barrier(2)
    both = [threads.submit(lambda: barrier.wait(LIMIT)) for _ in range(2)]
    assert sorted(future.result(LIMIT) for future in both) == [0, 1]
    threads.close()


def test_work_of_another_process_for_which_no_thread_can_be_started_may_be_tried_elsewhere(thread_starts):
    threads = LeafThreads(2)
    with WorkScope(policy=CarrierPolicy()).entered():
        future = threads.submit(lambda: "done")
    with pytest.raises(WorkerUnavailableError, match="start another thread.*try again, or use another worker"):
        future.result(LIMIT)
    threads.close()


def test_work_waits_for_the_threads_that_there_are_where_no_more_can_be_started(thread_starts):
    threads = LeafThreads(8)
    thread_starts.left, held = 1, Held()
    first = threads.submit(held)
    assert held.begun.wait(LIMIT)
    others = [threads.submit(threading.get_ident) for _ in range(20)]
    assert not any(other.done() for other in others)
    held.end.set()
    assert len({other.result(LIMIT) for other in others}) == 1
    assert first.result(LIMIT) == "held"
    threads.close()


def test_a_thread_that_only_waits_is_none_that_work_can_wait_for(thread_starts):
    threads = LeafThreads(1)
    thread_starts.left = 1

    def outer():
        inner = threads.submit(lambda: "inner")  # is in the queue before this waits for it
        with waiting():
            return inner.result(LIMIT)

    with pytest.raises(ResourceLimitError, match="start another thread"):
        threads.submit(outer).result(LIMIT)
    thread_starts.left = 1
    assert threads.submit(outer).result(LIMIT) == "inner"
    threads.close()


async def test_a_thread_of_cancelled_work_is_none_that_work_can_wait_for(thread_starts):
    threads = LeafThreads(1)
    thread_starts.left, held = 1, Held()
    cancelled = asyncio.ensure_future(threads.run(held))
    await asyncio.to_thread(held.begun.wait, LIMIT)
    queued = threads.submit(lambda: "queued")
    assert not queued.done()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(ResourceLimitError, match="start another thread"):
        queued.result(LIMIT)
    held.end.set()
    threads.close()


async def test_work_that_waits_and_is_cancelled_gives_room_once(thread_starts):
    threads = LeafThreads(1)
    thread_starts.left = 10
    nested, begun, end = Held(), threading.Event(), threading.Event()

    def outer():
        with waiting():
            begun.set()
            assert end.wait(LIMIT)

    cancelled = asyncio.ensure_future(threads.run(outer))
    await asyncio.to_thread(begun.wait, LIMIT)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    first, second = threads.submit(nested), threads.submit(lambda: "second")
    assert nested.begun.wait(LIMIT)
    assert not second.done()
    nested.end.set()
    assert (first.result(LIMIT), second.result(LIMIT)) == ("held", "second")
    end.set()
    threads.close()


def test_a_thread_that_begins_although_its_start_failed_ends_at_once(monkeypatch):
    threads = LeafThreads(1, idle_seconds=0.01)
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_and_fail(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_and_fail)
        future = threads.submit(lambda: "done")
        outcome = future.exception(LIMIT)
    started[0].join(LIMIT)
    assert not started[0].is_alive()
    assert repr(threads) == "<LeafThreads 0 threads, at most 1>"
    # It may have been quick, and done the work.
    assert isinstance(outcome, ResourceLimitError) or future.result() == "done"
    assert threads.submit(lambda: "done").result(LIMIT) == "done"
    threads.close()


async def test_a_computation_says_that_no_thread_can_be_started_and_works_when_there_is_room_again(thread_starts):
    @fedstack.python_computation([np.int32], np.int32)
    def double(x):
        return x + x

    thread_starts.left = 1  # for the context
    with fedstack.create_async_local_execution_context(max_concurrent_clients=2) as context:
        assert isinstance(context, AsyncExecutionContext)
        thread_starts.left = 0
        for _ in range(3):
            with pytest.raises(ResourceLimitError, match="start another thread"):
                await double(1)
        thread_starts.left = 4
        assert await double(1) == 2


def test_a_phase_for_which_no_helper_can_be_started_runs_without(thread_starts):
    @fedstack.python_computation([np.int32], np.int32)
    def doze(x):
        threading.Event().wait(0.002)
        return x + x

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def doze_all(values):
        return fl.federated_map(doze, values)

    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        for _ in range(2):
            assert doze_all(list(range(20))) == list(range(0, 40, 2))


def refusal(found: int) -> Exception:
    return ResourceLimitError(f"found {found}")


async def test_cancelled_work_has_threads_of_its_own_up_to_a_limit_and_new_work_is_refused_beyond_it():
    threads = LeafThreads(2)
    abandoned = AbandonedWork(3, refusal)
    set_scope(WorkScope(abandoned=abandoned))
    every = [Held() for _ in range(5)]
    for number, held in enumerate(every):
        assert await asyncio.wait_for(threads.run(lambda: "done"), LIMIT) == "done", number
        cancelled = asyncio.ensure_future(threads.run(held))
        await asyncio.to_thread(held.begun.wait, LIMIT)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert abandoned.count == number + 1
    assert repr(threads) == "<LeafThreads 5 threads, at most 2>"
    for _ in range(10):
        with pytest.raises(ResourceLimitError, match="found 5"):
            await threads.run(lambda: "refused")
    every[0].end.set()
    await until(lambda: abandoned.count == 4)
    assert await asyncio.wait_for(threads.run(lambda: "done"), LIMIT) == "done"
    for held in every:
        held.end.set()
    await until(lambda: abandoned.count == 0)
    threads.close()


async def until(look) -> None:
    """Returns when something has become true that threads bring about."""

    def wait() -> None:
        deadline = time.monotonic() + LIMIT
        while not look():
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)

    await asyncio.to_thread(wait)


async def test_what_waits_in_the_queue_is_refused_when_the_last_thread_is_given_up():
    threads = LeafThreads(1)
    set_scope(WorkScope(abandoned=AbandonedWork(1, refusal)))
    every = [Held(), Held()]
    running = [asyncio.ensure_future(threads.run(held)) for held in every]
    queued = asyncio.ensure_future(threads.run(lambda: "queued"))
    for held, cancelled in zip(every, running):
        await asyncio.to_thread(held.begun.wait, LIMIT)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    with pytest.raises(ResourceLimitError, match="found 2"):
        await asyncio.wait_for(queued, LIMIT)
    for held in every:
        held.end.set()
    threads.close()


async def test_when_cancelled_work_ends_a_pool_has_no_more_threads_than_it_may_have():
    threads = LeafThreads(1)
    every = [Held() for _ in range(6)]
    for held in every:
        cancelled = asyncio.ensure_future(threads.run(held))
        await asyncio.to_thread(held.begun.wait, LIMIT)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    for held in every:
        held.end.set()
    await until(lambda: repr(threads) == "<LeafThreads 1 threads, at most 1>")
    assert await asyncio.wait_for(threads.run(lambda: "done"), LIMIT) == "done"
    threads.close()


async def test_work_that_is_cancelled_before_it_begins_is_let_go_of_at_once():
    threads = LeafThreads(1)
    held = Held()
    running = asyncio.ensure_future(threads.run(held))
    await asyncio.to_thread(held.begun.wait, LIMIT)
    array = np.zeros(8)
    kept = weakref.ref(array)
    waits = asyncio.ensure_future(threads.run(lambda array=array: array.sum()))
    del array
    await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    del waits
    await asyncio.sleep(0)  # the loop lets go of the task
    gc.collect()
    assert kept() is None
    held.end.set()
    assert await running == "held"
    threads.close()


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_helpers_of_a_phase_that_nobody_waits_for_are_given_up_with_it(monkeypatch, how):
    monkeypatch.setattr("fedstack.executors.base.client_blocks.CORES", 4)  # so many threads join, whatever they do
    begun, end, failing = threading.Semaphore(0), threading.Event(), threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def hang(x):
        begun.release()
        if x == 0:
            assert failing.wait(LIMIT)
            raise ValueError("failed")
        assert end.wait(LIMIT)
        return x

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def hang_all(values):
        return fl.federated_map(hang, values)

    context = fedstack.create_async_local_execution_context(max_concurrent_clients=4)
    with context, fedstack.use_context(context):
        running = asyncio.ensure_future(hang_all(list(range(4))))
        for _ in range(4):
            assert await asyncio.to_thread(begun.acquire, timeout=LIMIT)
        if how == "cancelled":
            running.cancel()
        else:
            failing.set()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else fedstack.FedstackError):
            await asyncio.wait_for(running, LIMIT)
        barrier = threading.Barrier(4)

        @fedstack.python_computation([np.int32], np.int32)
        def meet(x):
            return np.int32(barrier.wait(LIMIT))

        found = await asyncio.wait_for(asyncio.gather(*(meet(number) for number in range(4))), LIMIT)
        assert sorted(found) == [0, 1, 2, 3]
        failing.set()
        end.set()


def test_threads_of_all_pools_are_counted():
    threads, held = LeafThreads(4), Held()
    before, busy_before = count_threads()
    future = threads.submit(held)
    assert held.begun.wait(LIMIT)
    now, busy_now = count_threads()
    assert now > 0
    assert now - before <= 1
    assert busy_now - busy_before <= 1
    held.end.set()
    assert future.result(LIMIT) == "held"
    threads.close()


async def test_the_error_of_work_that_nobody_waits_for_any_more_keeps_nothing(eventually) -> None:
    begun, released = threading.Event(), threading.Event()
    things: list[weakref.ref[threading.Event]] = []

    def work() -> None:
        thing = threading.Event()
        things.append(weakref.ref(thing))
        begun.set()
        released.wait(20)
        raise ValueError("too late")

    threads = LeafThreads(1)
    task = asyncio.ensure_future(threads.run(work))
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    released.set()
    await eventually(lambda: things[0]() is None)
    assert caught.value.__traceback__ is not None, "the caller's frames are still there"
    threads.close()


def keep(threads: LeafThreads, owner: str, gate: threading.Event, count: int, abandoned=None) -> list[Job[bool]]:
    """Has work of somebody's wait at a gate."""
    with attrs.evolve(current_scope(), caller=owner, abandoned=abandoned).entered():
        return [threads.submit(lambda: gate.wait(LIMIT)) for _ in range(count)]


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_owner_that_keeps_all_threads_leaves_some_to_others(cancelled):
    threads, gate = LeafThreads(4, for_others=2), threading.Event()
    abandoned = AbandonedWork(2, lambda found: ResourceLimitError(f"{found} are abandoned"))
    jobs = keep(threads, "greedy", gate, 30, abandoned)
    try:
        if cancelled:
            for job in jobs:
                threads.give_up(job)
            for job in keep(threads, "greedy", gate, 30, abandoned):
                threads.give_up(job)
        for name in ("one", "another", "one"):
            opened = threading.Event()
            held = keep(threads, name, opened, 5)
            opened.set()
            assert all(job.result(LIMIT) for job in held)
    finally:
        gate.set()
        threads.close()


def test_spare_threads_go_only_to_owners_that_have_less_than_half():
    threads, gate, opened = LeafThreads(4, for_others=3), threading.Event(), threading.Event()
    greedy = keep(threads, "greedy", gate, 10)
    modest = keep(threads, "modest", opened, 5)
    try:
        await_until(lambda: threads._pool.busy == 6)
        assert [job.running() for job in modest] == [True, True, False, False, False]
        third = keep(threads, "a third", opened, 1)
        await_until(lambda: third[0].running())
        assert sum(job.running() for job in greedy) == 4
        opened.set()
        assert all(job.result(LIMIT) for job in modest + third)
        assert sum(job.running() for job in greedy) == 4
    finally:
        gate.set()
        opened.set()
        threads.close()


@pytest.mark.parametrize("given", ["7", "0", "default", "", "many"])
def test_the_number_of_cores_is_that_of_the_environment_if_it_is_a_number(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHON_CPU_COUNT", raising=False)
    usable = leaf_threads._usable_cores()
    monkeypatch.setenv("PYTHON_CPU_COUNT", given)
    assert leaf_threads._usable_cores() == (7 if given == "7" else usable)
