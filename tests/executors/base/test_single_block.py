"""A phase of few and short clients runs in one block, without much bookkeeping, to the same bits and errors."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import LeafError
from fedstack.executors import leaf_executor
from fedstack.executors.base import single_block

AT_CLIENTS = fl.FederatedType(np.float32, fl.CLIENTS)


@pytest.fixture(autouse=True)
def context() -> Iterator[SyncExecutionContext]:
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        yield context


@pytest.fixture(autouse=True)
def _half_a_second_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_block, "BLOCK_SECONDS", 0.5)  # even where other programs have the cores


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The clients of each run in a single block."""
    found: list[range] = []
    run = single_block.run_single_block

    def recording(program: Any, inputs: Any, clients: range, sink: Any) -> None:
        found.append(clients)
        run(program, inputs, clients, sink)

    monkeypatch.setattr(leaf_executor, "run_single_block", recording)
    return found


def rounds_of(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a computation with aggregations of each kind, and results at the clients."""
    leaf = fedstack.python_computation(np.float32, np.float32)(function)
    plus = fedstack.python_computation([np.float32, np.float32], np.float32)(lambda x, y: x + y)
    same = fedstack.python_computation(np.float32, np.float32)(lambda x: x)

    @fl.federated_computation(AT_CLIENTS)
    def totals(values: Any) -> Any:
        out = fl.federated_map(leaf, values)
        total = fl.federated_aggregate(out, np.float32(0), plus, plus, same)
        return fl.federated_sum(out), fl.federated_mean(out, values), fl.federated_max(out), total, out

    return totals


@pytest.mark.parametrize("clients", [1, 2, 13, 100])
def test_the_second_call_of_short_clients_is_one_block_with_the_bits_of_the_first(
    runs: list[range], clients: int
) -> None:
    totals = rounds_of(lambda x: np.float32(x * 1.1 + 0.3))
    values = (np.random.default_rng(clients).normal(size=clients) * 1000).astype(np.float32)
    first = totals(values)
    assert not runs
    for _ in range(2):
        again = totals(values)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert runs == [range(clients)] * 2


def test_clients_that_have_taken_longer_than_a_block_run_in_blocks_again(
    runs: list[range], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """Stands for the `time` module; each look is a second later."""

        now = 0.0

        def perf_counter(self) -> float:
            self.now += 1.0
            return self.now

    totals = rounds_of(lambda x: x)
    values = np.arange(8, dtype=np.float32)
    totals(values)
    totals(values)
    assert runs == [range(8)]
    monkeypatch.setattr(single_block, "time", Clock())
    totals(values)  # takes a second
    totals(values)
    assert runs == [range(8)] * 2


def test_the_error_of_a_short_client_names_it_and_the_next_call_runs(runs: list[range]) -> None:
    def careful(x: Any) -> Any:
        if x < 0:
            raise ValueError("below zero")
        return x

    totals = rounds_of(careful)
    values = np.arange(9, dtype=np.float32)
    first = totals(values)
    wrong = values.copy()
    wrong[6] = -1
    with pytest.raises(LeafError, match="below zero; at client 6") as caught:
        totals(wrong)
    assert caught.value.client_index == 6
    assert runs
    assert np.array_equal(totals(values)[0], first[0])


def test_calls_whose_clients_are_counted_or_may_fail_run_in_blocks(
    context: SyncExecutionContext, runs: list[range]
) -> None:
    totals = rounds_of(lambda x: x)
    values = np.arange(8, dtype=np.float32)
    counted = context.with_options(progress=lambda _: contextlib.nullcontext(lambda _: None))
    tolerant = context.with_options(client_failures=fedstack.ClientFailures(tolerate=0.5))
    for other in [counted, tolerant] * 2:
        with fedstack.use_context(other):
            totals(values)
    assert not runs
    totals(values)
    assert runs == [range(8)]
