"""Leaf computations may take long to load, as where they import a framework: no event loop waits for them."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import computation_pb2
from stacks import composing_factory

import fedstack
from fedstack.computations.leaves import leaf_runtimes
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.errors import CarrierError
from fedstack.leaves import Leaf, LeafRuntime

WALL = 20.0
INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(INT, fl.CLIENTS)
PAIR = fl.StructType([INT, INT])
SEQUENCE = fl.SequenceType(INT)
_numbers = itertools.count()


class Adding(Leaf):
    """Adds the members of its argument, or 1."""

    def evaluate(self, argument: Any) -> Any:
        return sum(argument) if isinstance(argument, tuple) else argument + 1


class SlowRuntime(LeafRuntime):
    """Loads nothing before a test lets it."""

    def __init__(self) -> None:
        self.loading = threading.Event()
        self.go_on = threading.Event()
        self.threads: list[threading.Thread] = []

    def load(self, computation: computation_pb2.Computation) -> Leaf:
        self.threads.append(threading.current_thread())
        self.loading.set()
        if not self.go_on.wait(WALL):
            raise CarrierError("Expected the event loop to go on while this loads, found that it does not")
        signature: Any = type_from_proto(computation.type)
        return Adding("adding", signature.parameter, signature.result)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> SlowRuntime:
    monkeypatch.setattr(leaf_runtimes, "_runtimes", dict(leaf_runtimes._runtimes))
    made = SlowRuntime()
    fedstack.register_leaf_runtime("federated_language.Placement", made)
    return made


def leaf(parameter: fl.Type = INT) -> Any:
    """Returns a leaf computation that nobody has loaded."""
    proto = computation_pb2.Computation(type=fl.FunctionType(parameter, INT).to_proto())
    proto.data.content.Pack(computation_pb2.Placement(uri=f"leaf {next(_numbers)}"))
    return fl.framework.ConcreteComputation.from_proto(proto)


def at_the_server() -> Any:
    return fl.federated_computation(lambda x: fl.federated_map(leaf(), x), fl.FederatedType(INT, fl.SERVER))


def at_clients() -> Any:
    return fl.federated_computation(lambda xs: fl.federated_sum(fl.federated_map(leaf(), xs)), INTS)


def accumulate() -> Any:
    return _aggregate(leaf(PAIR), add, same)


def merge() -> Any:
    return _aggregate(add, leaf(PAIR), same)


def report() -> Any:
    return _aggregate(add, add, leaf())


def select() -> Any:
    @fl.federated_computation(
        fl.FederatedType(fl.TensorType(np.int32, [2]), fl.CLIENTS), fl.FederatedType(INT, fl.SERVER)
    )
    def selected(keys, value):
        return fl.federated_select(keys, fl.federated_value(9, fl.SERVER), value, leaf(PAIR))

    return selected


def map_of_a_sequence() -> Any:
    return fl.federated_computation(lambda xs: fl.sequence_sum(fl.sequence_map(leaf(), xs)), SEQUENCE)


def reduce_of_sequences_at_clients() -> Any:
    add_up = leaf(PAIR)
    reduce = fl.federated_computation(lambda xs: fl.sequence_reduce(xs, 0, add_up), SEQUENCE)
    return fl.federated_computation(lambda xs: fl.federated_map(reduce, xs), fl.FederatedType(SEQUENCE, fl.CLIENTS))


@fedstack.python_computation([INT, INT], INT)
def add(x, y):
    return x + y


@fedstack.python_computation([INT], INT)
def same(x):
    return x


def _aggregate(accumulates: Any, merges: Any, reports: Any) -> Any:
    return fl.federated_computation(lambda xs: fl.federated_aggregate(xs, 0, accumulates, merges, reports), INTS)


KINDS = {
    at_the_server: ([1], 2),
    at_clients: ([[1, 2, 3]], 9),
    accumulate: ([[1, 2, 3]], 6),
    merge: ([[1, 2, 3]], 6),
    report: ([[1, 2, 3]], 7),
    select: ([[[1, 2], [3, 4]], 5], [[6, 7], [8, 9]]),
    map_of_a_sequence: ([[1, 2]], 5),
    reduce_of_sequences_at_clients: ([[[1, 2], [3]]], [3, 3]),
}


@pytest.fixture(params=["local", "composed"])
async def context(request: pytest.FixtureRequest) -> AsyncIterator[AsyncExecutionContext]:
    factory = fedstack.local_executor_factory() if request.param == "local" else composing_factory(2)
    made = AsyncExecutionContext(factory)
    yield made
    made.close()


async def let_load(runtime: SlowRuntime) -> None:
    await asyncio.to_thread(runtime.loading.wait, WALL)
    runtime.go_on.set()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_an_event_loop_goes_on_while_a_leaf_is_loaded(
    context: AsyncExecutionContext, runtime: SlowRuntime, kind: Any
) -> None:
    arguments, expected = KINDS[kind]
    computation = kind()
    with fedstack.use_context(context):
        running = asyncio.ensure_future(computation(*arguments))
        await asyncio.wait_for(let_load(runtime), WALL)
        assert await running == expected
        assert await computation(*arguments) == expected
    assert runtime.threads
    assert all(thread.name.startswith("fedstack-leaf") for thread in runtime.threads)


async def test_a_leaf_that_several_calls_wait_for_is_loaded_once(runtime: SlowRuntime) -> None:
    context = fedstack.create_async_local_execution_context()
    with fedstack.use_context(context):
        computation = at_clients()
        calls = [asyncio.ensure_future(computation([1, 2])) for _ in range(10)]
        await asyncio.wait_for(let_load(runtime), WALL)
        assert await asyncio.gather(*calls) == [5] * 10
    context.close()
    assert len(runtime.threads) == 1


async def test_a_leaf_that_cannot_be_loaded_is_an_error_of_its_call(
    context: AsyncExecutionContext, runtime: SlowRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(computation: computation_pb2.Computation) -> Leaf:
        raise CarrierError("Expected a friend, found a stranger")

    monkeypatch.setattr(runtime, "load", refuse)
    with fedstack.use_context(context):
        with pytest.raises(CarrierError, match="found a stranger"):
            await at_clients()([1, 2])


def test_a_synchronous_context_loads_where_it_runs(runtime: SlowRuntime) -> None:
    runtime.go_on.set()
    context = SyncExecutionContext(fedstack.local_executor_factory())
    with fedstack.use_context(context):
        assert at_clients()([1, 2]) == 5
    context.close()
    assert runtime.threads == [threading.current_thread()]


async def test_a_synchronous_context_under_a_running_loop_loads_where_it_runs(runtime: SlowRuntime) -> None:
    runtime.go_on.set()
    context = SyncExecutionContext(fedstack.local_executor_factory())
    with fedstack.use_context(context):
        assert at_clients()([1, 2]) == 5
    context.close()
    assert runtime.threads == [threading.current_thread()]
