"""Functions that bring much with them to workers."""

import os
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves import function_pickles
from fedstack.foundations.caches import SharedCache
from fedstack.service import local_worker_pool


@pytest.mark.long
def test_a_large_variable_is_warned_of_once_over_many_calls_on_a_worker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function_pickles, "_warned_of", SharedCache(10, 10))
    table = np.zeros(2_000_000)

    def leaf(x: Any) -> Any:
        return x + np.int32(table[0])

    computation = fl.federated_computation(
        lambda xs: fl.federated_map(fedstack.python_computation([np.int32], np.int32)(leaf), xs),
        fl.FederatedType(np.int32, fl.CLIENTS),
    )
    with (
        local_worker_pool(1) as pool,
        fedstack.create_sync_remote_execution_context(pool) as context,
        fedstack.use_context(context),
    ):
        assert [computation([1, 2]), computation([3])] == [[1, 2], [3]]
    assert [record.getMessage() for record in caplog.records if record.name == function_pickles.__name__] == [
        "'table' (16 MB) is sent with 'leaf' in each call; pass it as an argument, or load it in the worker"
    ]


def resident_bytes(pid: int) -> int:
    """Returns the memory of a process, where the system says it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say how much memory is in use")
def test_a_function_that_changes_from_call_to_call_does_not_fill_the_memory_of_worker_and_client() -> None:
    table = np.random.default_rng(0).random(2_000_000)  # 16 MB
    number = 0

    def leaf(x: Any) -> Any:
        return np.int32(x + number + 0 * len(table))

    computation = fl.federated_computation(
        lambda xs: fl.federated_map(fedstack.python_computation([np.int32], np.int32)(leaf), xs),
        fl.FederatedType(np.int32, fl.CLIENTS),
    )
    with (
        local_worker_pool(1) as pool,
        fedstack.create_sync_remote_execution_context(pool) as context,
        fedstack.use_context(context),
    ):

        def run(calls: int) -> tuple[int, int]:
            nonlocal number
            for _ in range(calls):
                number += 1
                assert computation([1]) == [1 + number]
            return resident_bytes(pool.pids[0]), resident_bytes(os.getpid())

        before = run(10)
        after = run(20)
    # What 20 of them bring is 320 MB.
    assert [later - earlier < 200 << 20 for earlier, later in zip(before, after)] == [True, True]
