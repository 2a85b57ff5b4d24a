"""Functions that bring much with them to workers."""

from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.python import captures
from fedstack.computations.types.bounded_cache import SharedCache
from fedstack.service import local_worker_pool


def test_a_large_variable_is_warned_of_once_over_many_calls_on_a_worker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "_told", SharedCache(10, 10))
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
    assert [record.getMessage() for record in caplog.records if record.name == captures.__name__] == [
        "'table' (16 MB) travels with 'leaf' in each call; give it as an argument, or load it in the worker"
    ]
