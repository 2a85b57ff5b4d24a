"""Clients that end the process they run in: each is found and named, and costs two workers and no more."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from fault_leaves import mean_visit
from fault_stacks import Background, Door, context_over, eventually, locally
from killing_leaves import (
    KILLER,
    crash,
    crash_always,
    crash_at_two,
    leave,
    leave_together,
    of_a_function_by_value,
    total_of,
    two_phases,
)
from processes import Fleet

import fedstack
from fedstack.errors import LeafError, NoWorkersError
from fedstack.service.pool.worker_pool import WorkerPool, local_worker_pool

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")]
CLIENTS = list(range(16))
# A search among few is a short one: most tests are about what it finds.
FEW = list(range(KILLER - 3, KILLER + 1))


@contextlib.contextmanager
def pool_of(workers: int, **options: object) -> Iterator[WorkerPool]:
    """Runs computations of the block on a pool."""
    with local_worker_pool(workers, **options) as pool:  # type: ignore[arg-type]
        context = fedstack.create_sync_remote_execution_context(pool)
        try:
            with fedstack.use_context(context):
                yield pool
        finally:
            context.close()


def failure_of(computation, clients=CLIENTS) -> LeafError:
    with pytest.raises(LeafError) as caught:
        Background(lambda: computation(clients)).result(120.0)
    return caught.value


def endings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines that tell of the end of a worker."""
    records = [record for record in caplog.records if record.name.endswith("pool_process")]
    return [text for record in records if "the worker process with pid" in (text := record.getMessage())]


def check_two_ended(caplog: pytest.LogCaptureFixture, how: str) -> None:
    eventually(lambda: len(endings(caplog)) >= 2)
    assert len(endings(caplog)) == 2
    assert all(f"ended with {how}" in text for text in endings(caplog))


@pytest.mark.parametrize("workers", [3, 1])
def test_a_client_that_crashes_is_named_and_the_workers_come_back(workers: int, caplog) -> None:
    total = total_of(crash)
    with pool_of(workers) as pool:
        before = pool.pids
        found = failure_of(total)
        assert (found.client_index, found.computation_name) == (KILLER, "crash")
        assert str(found).startswith(
            "'crash' crashed its process with signal 11 (SIGSEGV); at "
            "client 13; it ended 2 workers before the search found it; fix the function\n"
        )
        assert "killing_leaves.py" in str(found)
        assert "ctypes.string_at(0)" in str(found)
        assert "fedstack/executors" not in str(found)
        check_two_ended(caplog, "signal 11 (SIGSEGV)")
        assert all("Fatal Python error: Segmentation fault" in text for text in endings(caplog))
        assert all("ctypes.string_at(0)" in text for text in endings(caplog))
        processes = "1 process" if workers == 1 else f"{workers} processes"
        eventually(lambda: repr(pool) == f"<WorkerPool of {processes}, {workers} of them alive>")
        assert len(set(before) - set(pool.pids)) == min(workers, 2)
        assert total(CLIENTS[:10]) == sum(CLIENTS[:10])


def test_a_function_by_value_is_found_too(caplog) -> None:
    with pool_of(2):
        found = failure_of(of_a_function_by_value(), FEW)
        assert (found.client_index, found.computation_name) == (3, "crash")
        check_two_ended(caplog, "signal 11 (SIGSEGV)")


def test_a_client_that_leaves_is_named_with_the_exit_status(caplog) -> None:
    with pool_of(2):
        found = failure_of(total_of(leave), FEW)
        assert found.client_index == 3
        assert "'leave' crashed its process with exit status 3; at client 3; " in str(found)
        check_two_ended(caplog, "exit status 3")


def test_of_two_clients_that_crash_the_first_is_named() -> None:
    with pool_of(2):
        assert failure_of(total_of(crash_at_two)).client_index == 3


def test_a_function_that_always_crashes_is_named_with_one_of_the_clients() -> None:
    with pool_of(2) as pool:
        found = failure_of(total_of(crash_always), FEW)
        # The first of a range that has ended two workers: which range that is, depends on which worker was quicker.
        assert (found.client_index in (0, 2), found.computation_name) == (True, "crash_always")
        eventually(lambda: repr(pool) == "<WorkerPool of 2 processes, 2 of them alive>")
        assert total_of(crash)([1, 2]) == 3


def test_a_client_that_crashes_in_a_later_phase_is_named(caplog) -> None:
    with pool_of(2):
        found = failure_of(two_phases, FEW)
        assert (found.client_index, found.computation_name) == (3, "crash_of_both")
        check_two_ended(caplog, "signal 11 (SIGSEGV)")


def test_clients_that_end_a_process_only_together_are_named_together() -> None:
    with pool_of(1):  # of two workers, each may take one of the two clients, and none ends
        found = failure_of(total_of(leave_together), list(range(4)))
        expected = "crashed its process with exit status 4 when run for clients 2 to 3 together, but not for any of"
        assert expected in str(found)
        assert found.client_index is None
        assert found.computation_name == "leave_together"


def test_workers_that_are_not_started_anew_are_two_fewer() -> None:
    with pool_of(3, respawn=False) as pool:
        assert failure_of(total_of(crash)).client_index == KILLER
        assert repr(pool) == "<WorkerPool of 3 processes, 1 of them alive>"
        assert total_of(crash)(CLIENTS[:10]) == sum(CLIENTS[:10])


def test_without_a_worker_to_search_with_the_clients_that_may_have_been_are_named() -> None:
    with pool_of(2, respawn=False) as pool:
        with pytest.raises(NoWorkersError) as caught:
            Background(lambda: total_of(crash)(CLIENTS)).result(60.0)
        # Some of the clients may have moved from one worker to the other, or be done.
        named = re.fullmatch(
            r"  these clients ran on two workers that ended: clients (\d+) to (\d+)", str(caught.value).splitlines()[-1]
        )
        assert named is not None
        assert KILLER in range(int(named[1]), int(named[2]) + 1)
        assert caught.value.is_final
        assert repr(pool) == "<WorkerPool of 2 processes, 0 of them alive>"


def test_workers_that_crash_of_themselves_are_no_clients_fault(door: Door, caplog) -> None:
    """The search finds nobody, the call goes on, and its result has the same bits."""
    caplog.set_level(logging.INFO)
    arguments = [(door.port, 0.1 * number) for number in range(9)]
    with pool_of(3, respawn=False) as pool:
        running = Background(lambda: mean_visit(arguments))
        until_it_searches(running, pool, door, caplog)
        door.open()
        found = running.result(120.0)
    assert np.asarray(found).tobytes() == np.asarray(locally(mean_visit, arguments)).tobytes()
    assert any("ended its process in the search" in record.getMessage() for record in caplog.records)


def until_it_searches(running: "Background[object]", pool: WorkerPool, door: Door, caplog) -> psutil.Process:
    """Lets two workers of three crash that run the same clients; returns the third when its children run some."""
    door.wait_for(running, *pool.pids)
    eventually(lambda: len(door.visitors) == 9)  # all clients, of which those of the first worker come again
    os.kill(pool.pids[0], signal.SIGABRT)
    eventually(lambda: {pool.pids[1], pool.pids[2]} <= set(door.visitors[9:]))
    os.kill(pool.pids[1], signal.SIGABRT)
    eventually(lambda: set(door.visitors) - set(pool.pids))
    return psutil.Process(pool.pids[2])


def test_workers_of_a_pool_that_others_kill_start_no_search(door: Door, caplog) -> None:
    arguments = [(door.port, 0.1 * number) for number in range(3)]
    with pool_of(3, respawn=False) as pool:
        running = Background(lambda: mean_visit(arguments))
        door.wait_for(running, *pool.pids)
        os.kill(pool.pids[0], signal.SIGKILL)
        eventually(lambda: len(door.visitors) > 3)
        os.kill(door.visitors[3], signal.SIGKILL)  # it runs the client of the first again
        eventually(lambda: sum(record.getMessage().startswith("Running client ") for record in caplog.records) == 3)
        door.open()
        found = running.result(120.0)
    assert np.asarray(found).tobytes() == np.asarray(locally(mean_visit, arguments)).tobytes()
    assert not any("is searching in child processes" in record.getMessage() for record in caplog.records)


def test_clients_of_a_lost_worker_that_nobody_restarts_run_in_child_processes(fleet: Fleet, door: Door) -> None:
    """How workers at addresses have ended is not known, so a client may have ended them, whoever has killed them."""
    workers = [fleet.start() for _ in range(3)]
    arguments = [(door.port, 0.1 * number) for number in range(3)]
    with context_over([worker.target for worker in workers]):
        running = Background(lambda: mean_visit(arguments))
        door.wait_for(running, *(worker.pid for worker in workers))
        workers[0].kill()
        known = {worker.pid for worker in workers}
        eventually(lambda: set(door.visitors) - known)  # client 0, in a child of another worker
        assert len(door.visitors) == len(workers) + 1
        door.open()
        found = running.result(120.0)
    assert np.asarray(found).tobytes() == np.asarray(locally(mean_visit, arguments)).tobytes()


def test_a_search_whose_call_is_cancelled_leaves_no_process(door: Door, caplog) -> None:
    arguments = [(door.port, 0.1 * number) for number in range(9)]
    with local_worker_pool(3, respawn=False) as pool:
        context = fedstack.create_async_remote_execution_context(pool)
        try:
            with fedstack.use_context(context):
                searches = lambda: bool(set(door.visitors) - set(pool.pids))  # noqa: E731
                running = Background(lambda: _cancelled_when(searches, arguments))
                worker = until_it_searches(running, pool, door, caplog)
                running.result(60.0)
            eventually(lambda: not worker.children(recursive=True))
            door.open()
        finally:
            context.close()


def test_a_worker_that_is_killed_while_it_searches_leaves_no_process(door: Door, caplog) -> None:
    arguments = [(door.port, 0.1 * number) for number in range(9)]
    with pool_of(3, respawn=False) as pool:
        running = Background(lambda: mean_visit(arguments))
        worker = until_it_searches(running, pool, door, caplog)
        children = worker.children(recursive=True)
        assert children
        worker.kill()
        _, alive = psutil.wait_procs(children, timeout=30.0)
        assert alive == []
        with pytest.raises(NoWorkersError, match="worker processes have ended"):
            running.result(60.0)
        door.open()


def _cancelled_when(is_so, arguments) -> None:
    """Runs a computation until something is so, and cancels it."""

    async def run() -> None:
        call = asyncio.ensure_future(mean_visit(arguments))
        deadline = time.monotonic() + 60.0
        while not is_so():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call

    asyncio.run(run())


def test_a_worker_that_is_killed_comes_back_at_its_address_for_those_who_know_the_token(caplog) -> None:
    with pool_of(1) as pool:
        total = total_of(crash)
        assert total([1, 2]) == 3
        (target,), (pid,) = pool.targets, pool.pids
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: pool.loss_of(target) is not None)
        loss = pool.loss_of(target)
        assert loss is not None
        assert loss.comes_back
        ended = f"the worker process with pid {pid} ended with signal 9 (SIGKILL)"
        assert loss.causes == {target: f"{ended}, and is being restarted"}
        assert total([1, 2]) == 3
        assert pool.targets == (target,)
        assert pool.pids != (pid,)
        eventually(lambda: pool.loss_of(target) is None)
        (text,) = endings(caplog)
        assert text == f"Worker at {target}: {ended}; restarting it in 0.0 s"
        if target.startswith("unix:"):
            folder = Path(target.removeprefix("unix:")).parent
            assert sorted(path.name for path in folder.iterdir()) == ["0.sock", "0.sock-s"]


@pytest.mark.parametrize("seconds", [0.0, 0.15, 0.4])
def test_a_pool_that_is_closed_while_a_worker_is_started_anew_leaves_nothing(
    seconds: float, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pool = local_worker_pool(1)
    try:
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + seconds
        eventually(lambda: time.monotonic() >= until)
        processes = [child for child in psutil.Process().children() if child.pid in pool.pids]
    finally:
        pool.close()
    assert not any(process.is_running() for process in processes)
    assert not [child for child in psutil.Process().children() if "pool_worker" in " ".join(_command(child))]
    assert list(tmp_path.iterdir()) == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
