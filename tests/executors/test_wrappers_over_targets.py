"""Every wrapper over every executor: whatever the target is, the wrapper runs what it runs, and makes its change."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import federated_language as fl
import numpy as np
import pytest
import remote_stacks
from google.protobuf import any_pb2, wrappers_pb2
from stacks import composing

import fedstack
from fedstack.computations.types.language import Struct, struct_elements
from fedstack.errors import WorkerUnavailableError
from fedstack.executors import (
    DataExecutor,
    FederatingExecutor,
    LeafExecutor,
    ReferenceResolvingExecutor,
    SequenceExecutor,
    SizingExecutor,
    TransformingExecutor,
)
from fedstack.testing import ExecutorRow, FaultInjectingExecutor, FaultPlan, RaisingExecutor, TracingExecutor
from fedstack.testing import executor_rows as rows_of_suite

# Thousands of cases; what differs between versions of Python is in the rows over single executors.
pytestmark = pytest.mark.slow


class ForeignValue(fl.framework.ExecutorValue):
    def __init__(self, executor, target):
        self.executor, self.target = executor, target

    @property
    def type_signature(self):
        return self.target.type_signature

    @property
    def reference(self):
        return self.target.reference

    async def compute(self):
        return await self.target.compute()


class ForeignExecutor(fl.framework.Executor):
    """An executor of another origin: it has the four verbs and nothing else, and runs everything."""

    def __init__(self, num_clients: int) -> None:
        self.target = ReferenceResolvingExecutor(federating(num_clients))

    async def create_value(self, value, type_spec=None):
        return ForeignValue(self, await self.target.create_value(value, type_spec))

    async def create_call(self, comp, arg=None):
        return ForeignValue(self, await self.target.create_call(comp.target, None if arg is None else arg.target))

    async def create_struct(self, elements):
        pairs = [(name, value.target) for name, value in struct_elements(elements)]
        return ForeignValue(self, await self.target.create_struct(Struct(pairs)))

    async def create_selection(self, source, index):
        return ForeignValue(self, await self.target.create_selection(source.target, index))

    def close(self):
        self.target.close()


def federating(num_clients: int) -> Any:
    return FederatingExecutor(SequenceExecutor(LeafExecutor()), num_clients)


class SomeData:
    """A data backend."""

    async def materialize(self, data: object, type_spec: object) -> object:
        return 5


Wrap = Callable[[Any], Any]
WRAPPERS: dict[str, Wrap] = {
    "sizing": SizingExecutor,
    "transforming": lambda target: TransformingExecutor(lambda block: block, target),
    "reference-resolving": ReferenceResolvingExecutor,
    "data": lambda target: DataExecutor(target, SomeData()),
    "fault-injecting": lambda target: FaultInjectingExecutor(target, FaultPlan.none()),
    "tracing": TracingExecutor,
}


@attrs.frozen
class Target:
    """An executor with a wrapper over it, in a stack that takes every computation."""

    make: Callable[[Wrap, int], Any]
    without: tuple[Any, ...] = ()


def resolved(make: Callable[[Wrap, int], Any]) -> Callable[[Wrap, int], Any]:
    return lambda wrap, clients: ReferenceResolvingExecutor(make(wrap, clients))


TARGETS = {
    "a LeafExecutor": Target(resolved(lambda wrap, n: FederatingExecutor(SequenceExecutor(wrap(LeafExecutor())), n))),
    "a SequenceExecutor": Target(
        resolved(lambda wrap, n: FederatingExecutor(SequenceExecutor(wrap(SequenceExecutor(LeafExecutor()))), n))
    ),
    "a FederatingExecutor": Target(resolved(lambda wrap, n: wrap(federating(n)))),
    "a ComposingExecutor": Target(resolved(lambda wrap, n: wrap(composing(n, 2)))),
    "a ReferenceResolvingExecutor": Target(lambda wrap, n: wrap(ReferenceResolvingExecutor(federating(n)))),
    "a RemoteExecutor": Target(
        lambda wrap, n: wrap(remote_stacks.remote(n, remote_stacks.in_memory_stub())), ("lazy arguments",)
    ),
    "an executor of another origin": Target(lambda wrap, n: wrap(ForeignExecutor(n)), ("lazy arguments",)),
}
# The language checks building blocks when it makes them, in words of its own.
BLOCKS = {
    "an_intrinsic_with_a_type_that_lies_is_refused",
    "a_call_that_does_not_fit_is_refused",
    "a_computation_of_no_kind_is_refused",
}


def rows() -> Iterator[Any]:
    for wrapper, (name, target) in itertools.product(WRAPPERS, TARGETS.items()):
        # What comes through the verbs, to be changed or written down, comes whole.
        by_verbs = wrapper == "tracing" or (
            wrapper == "transforming" and name in ("a LeafExecutor", "a SequenceExecutor")
        )
        without = {*target.without, *(["lazy arguments"] if by_verbs else [])}
        left_out = {"sequence_map_is_lazy"} if by_verbs else set()
        for row in rows_of_suite(without=without, tags=["errors", "timing"]):
            if row.name not in left_out and (wrapper != "transforming" or row.name not in BLOCKS):
                yield pytest.param(wrapper, target, row, id=f"{wrapper} over {name}-{row.name}")


@pytest.fixture(scope="module", autouse=True)
def servers():
    remote_stacks.start_servers()
    yield
    remote_stacks.stop_servers()


@pytest.mark.fedstack_leak_check(False)
@pytest.mark.parametrize(("wrapper", "target", "row"), list(rows()))
def test_a_wrapper_keeps_the_promises_of_its_target(wrapper: str, target: Target, row: ExecutorRow) -> None:
    row.check(lambda clients: target.make(WRAPPERS[wrapper], clients))


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


@fl.federated_computation(fl.FederatedType(np.int32, fl.SERVER), fl.FederatedType(np.int32, fl.CLIENTS))
def one_round(model, xs):
    return fl.federated_sum(fl.federated_map(add, (fl.federated_broadcast(model), xs)))


async def called(executor: Any, computation: Any, *arguments: object) -> Any:
    function = await executor.create_value(computation)
    parameters = [member for _, member in computation.type_signature.parameter.items()] if arguments else []
    values = [await executor.create_value(value, type_spec) for value, type_spec in zip(arguments, parameters)]
    return await executor.create_call(function, await executor.create_struct(values) if values else None)


@pytest.mark.fedstack_leak_check(False)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_a_round_runs_through_a_wrapper_over_any_executor(wrapper: str, target: str) -> None:
    executor = TARGETS[target].make(WRAPPERS[wrapper], 3)
    value = await called(executor, one_round, 10, [1, 2, 3])
    assert await value.compute() == 36
    executor.close()


BY_THE_VERBS = ["a RemoteExecutor", "an executor of another origin"]


@pytest.mark.fedstack_leak_check(False)
@pytest.mark.parametrize("target", BY_THE_VERBS)
async def test_sizing_counts_what_passes_through_the_verbs_for_client_0(target: str) -> None:
    executor = TARGETS[target].make(SizingExecutor, 3)
    value = await called(executor, one_round, 10, [1, 2, 3])
    await value.compute()
    sizes = executor.get_size_info()
    assert (sizes.broadcast_bits, sizes.aggregate_bits) == ({0: 4 * 32}, {0: 32})
    executor.close()


@pytest.mark.parametrize("target", ["a FederatingExecutor", "a ComposingExecutor", "a ReferenceResolvingExecutor"])
async def test_sizing_counts_for_each_client_where_it_sees_them(target: str) -> None:
    made = []
    executor = TARGETS[target].make(lambda below: made.append(SizingExecutor(below)) or made[0], 3)
    await (await called(executor, one_round, 10, [1, 2, 3])).compute()
    sizes = made[0].get_size_info()
    assert (sizes.broadcast_bits, sizes.aggregate_bits) == ({0: 32, 1: 32, 2: 32}, {0: 32, 1: 32, 2: 32})
    executor.close()


@pytest.mark.fedstack_leak_check(False)
@pytest.mark.parametrize("target", TARGETS)
async def test_a_fault_is_injected_over_any_executor(target: str) -> None:
    plan = FaultPlan(error_rate=1.0)
    executor = TARGETS[target].make(lambda below: FaultInjectingExecutor(below, plan), 3)
    with pytest.raises(WorkerUnavailableError, match="Expected client 0 to run"):
        await (await called(executor, one_round, 10, [1, 2, 3])).compute()
    executor.close()


@pytest.mark.fedstack_leak_check(False)
@pytest.mark.parametrize("target", TARGETS)
async def test_data_is_resolved_over_any_executor(target: str) -> None:
    content = any_pb2.Any()
    content.Pack(wrappers_pb2.Int32Value(value=1))
    block = fl.framework.Lambda(None, None, fl.framework.Data(content, fl.TensorType(np.int32)))
    executor = TARGETS[target].make(WRAPPERS["data"], 0)
    data = fl.framework.ConcreteComputation.from_building_block(block)
    assert await (await called(executor, data)).compute() == 5
    executor.close()


@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_an_error_of_the_target_comes_through_a_wrapper_as_it_is(wrapper: str) -> None:
    executor = WRAPPERS[wrapper](RaisingExecutor(WorkerUnavailableError("no luck")))
    with pytest.raises(WorkerUnavailableError, match="^no luck$"):
        await (await called(executor, one_round, 10, [1, 2, 3])).compute()
    executor.close()
