"""Pools of real processes: the bits, functions that end them, scripts without a guard, Ctrl-C."""

import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pool_leaves import doubled, ending_once, ends_at_three, mean_distance, noting, raises_exit, total_of, wait_until
from random_computations import DEFAULT_CLIENTS, SLOW_IS_FINE, assert_same, bare, programs

import fedstack
from fedstack.backends import pool_backend
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import LeafError, LostWorkersError, NoWorkersError
from fedstack.foundations.memory_files import MemoryFile

LIMIT = 100.0
pytestmark = pytest.mark.fedstack_leak_check(False)  # the pool is for all tests


def new_pool(workers: int = 2) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with new_pool() as made:
        yield made


def context_over(*args, **options) -> SyncExecutionContext:
    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.01)
    return SyncExecutionContext(fedstack.pool_executor_factory(*args, **options), retry_policy=policy)


@pytest.mark.long
@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[*SLOW_IS_FINE, HealthCheck.function_scoped_fixture]
)
@given(program=programs(), workers=st.integers(1, 7))
def test_random_computations_have_the_bits_of_the_local_stack(pool: Executor, program, workers: int) -> None:
    computation, value, *_ = program
    with fedstack.create_sync_local_execution_context(default_num_clients=DEFAULT_CLIENTS) as local:
        expected = bare(local.invoke(computation, value))
    with context_over(pool, workers, DEFAULT_CLIENTS) as context:
        assert_same(bare(context.invoke(computation, value)), expected)


def test_functions_go_by_reference_and_by_value(pool: Executor) -> None:
    secret = 5
    with context_over(pool):
        assert total_of(doubled)([1, 2, 3]) == 12
        assert total_of(lambda value: value + secret)([1, 2, 3]) == 21


def test_what_a_function_raises_to_end_its_process_is_an_error_of_the_client(pool: Executor) -> None:
    with context_over(pool), pytest.raises(LeafError, match="'raises_exit' raised SystemExit: at 4; at client 0"):
        total_of(raises_exit)([4])
    with context_over(pool):
        assert total_of(doubled)([1]) == 2


@pytest.mark.long
def test_a_client_that_ends_its_process_breaks_a_pool_and_is_among_those_named() -> None:
    with new_pool() as pool, context_over(pool):
        assert total_of(doubled)([1, 2]) == 6
        with pytest.raises(NoWorkersError) as caught:
            total_of(ends_at_three)(list(range(8)))
        assert "BrokenProcessPool" in str(caught.value)
        assert "clients 0 to 3" in str(caught.value)
        with pytest.raises(NoWorkersError, match="broken and cannot be used again"):
            total_of(doubled)([1, 2])


@pytest.mark.long
def test_a_function_that_makes_pools_lets_a_call_survive_a_crash(tmp_path: Path) -> None:
    with context_over(new_pool):
        assert ending_once(tmp_path / "ended")(list(range(8))) == 28
        assert (tmp_path / "ended").exists()


def test_a_broken_pool_costs_what_its_processes_were_running(tmp_path: Path) -> None:
    """Once the time of a client is known, each process gets tasks of ten clients, and most have been handed in."""
    with context_over(new_pool, max_concurrent_clients=1):
        notes = noting(tmp_path)
        assert notes(list(range(200))) == sum(range(200))  # in one task a process, since nothing is known
        assert notes(list(range(1000, 1200))) == sum(range(1000, 1200))
    runs = [len(file.read_text()) for file in tmp_path.iterdir() if file.name != "ended"]
    assert len(runs) == 200
    assert sum(runs) - 400 <= 60, "two processes were at work, and each had a task queued"


@pytest.mark.long
def test_a_client_that_ends_each_pool_ends_the_call() -> None:
    policy = fedstack.RetryPolicy(attempts=2, first_pause=0.01)
    factory = fedstack.pool_executor_factory(lambda: new_pool(1))
    with SyncExecutionContext(factory, retry_policy=policy), pytest.raises(LostWorkersError, match="clients 0 to 7"):
        total_of(ends_at_three)(list(range(8)))


def test_no_client_is_blamed_for_pools_that_never_start() -> None:
    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.01)
    spawn = multiprocessing.get_context("spawn")
    factory = fedstack.pool_executor_factory(lambda: ProcessPoolExecutor(1, spawn, os._exit, (1,)))
    with SyncExecutionContext(factory, retry_policy=policy), pytest.raises(LostWorkersError, match="clients 0 to 7"):
        total_of(doubled)(list(range(8)))


@pytest.mark.long
def test_a_client_that_ends_one_pool_after_the_other_is_named() -> None:
    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.01)
    with SyncExecutionContext(fedstack.pool_executor_factory(lambda: new_pool(1)), retry_policy=policy):
        with pytest.raises(
            LeafError, match="'ends_at_three' crashed its worker; at client 3; 4 workers crashed before"
        ):
            total_of(ends_at_three)(list(range(8)))
        assert total_of(doubled)([1]) == 2


def run_script(text_or_file: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = [str(text_or_file)] if isinstance(text_or_file, Path) else ["-c", text_or_file]
    return subprocess.run(
        [sys.executable, *given, *arguments], capture_output=True, text=True, timeout=LIMIT, cwd=Path(__file__).parent
    )


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
def test_ctrl_c_ends_a_call_and_what_has_not_begun_of_it(tmp_path: Path) -> None:
    done = run_script(Path(__file__).parent / "interrupted_script.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    interrupted, then, begun = done.stdout.splitlines()
    assert interrupted.startswith("interrupted <BackendExecutorFactory over <PoolBackend of ProcessPoolExecutor, ")
    assert "at work that" in interrupted
    assert then == "then 9"
    assert int(begun.split()[1]) < 8


@pytest.mark.long
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import fedstack\n"
        "from fedstack.contexts import SyncExecutionContext\n"
        "from pool_leaves import doubled, total_of\n"
        "pool = ProcessPoolExecutor(1, multiprocessing.get_context('spawn'))\n"
        "with SyncExecutionContext(fedstack.pool_executor_factory(pool)):\n"
        "    total_of(doubled)([1])\n"
    )
    done = run_script(script)
    assert done.returncode == 1
    assert "should run with `if __name__ == '__main__':`" in done.stderr


def open_files() -> int:
    """Returns the number of files that are open, without those in which a thread looks up what others do."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += not os.readlink(f"/proc/self/fd/{name}").startswith("/proc/")
    return found


def test_a_large_model_is_written_once_for_all_tasks_and_has_its_bits(pool: Executor, monkeypatch) -> None:
    written: list[int] = []

    def memory_file(memory):
        written.append(len(memory))
        return MemoryFile(memory)

    monkeypatch.setattr(pool_backend, "MemoryFile", memory_file)
    model = np.random.default_rng(0).standard_normal(1 << 19).astype(np.float32)
    values = [float(number) for number in range(40)]
    with fedstack.create_sync_local_execution_context():
        expected = mean_distance(values, model)
    with context_over(pool):
        total_of(doubled)([1])  # the pool may open files of its own
        files = open_files()
        for _ in range(3):  # at first with one task a process
            assert mean_distance(values, model).tobytes() == expected.tobytes()
            gc.collect()
            wait_until(lambda: open_files() <= files)  # other threads may have some open for a moment
    assert written == [1] * 3


def test_threads_get_a_large_model_too() -> None:
    model = np.ones(1 << 19, np.float32)
    with fedstack.create_sync_local_execution_context():
        expected = mean_distance([1.0, 2.0, 3.0], model)
    with ThreadPoolExecutor(2) as threads, context_over(threads):
        assert mean_distance([1.0, 2.0, 3.0], model) == expected
