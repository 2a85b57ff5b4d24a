"""The executors that wrap one other: data, sizing, transforming, and the adapter for executors of another origin."""

import asyncio
from collections import OrderedDict

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import computation_pb2
from google.protobuf import any_pb2, wrappers_pb2

import fedstack
from fedstack.errors import CarrierError, InvalidComputationError, TypeMismatchError
from fedstack.executors import (
    DataExecutor,
    FederatingExecutor,
    LeafExecutor,
    ReferenceResolvingExecutor,
    SequenceExecutor,
    SizingExecutor,
    TransformingExecutor,
)


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x * 2


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


def data_computation(type_spec, number):
    content = any_pb2.Any()
    content.Pack(wrappers_pb2.Int32Value(value=number))
    return fl.framework.ConcreteComputation.from_building_block(
        fl.framework.Lambda(None, None, fl.framework.Data(content, fl.to_type(type_spec)))
    )


class Backend:
    def __init__(self, value):
        self.value = value
        self.calls = 0

    async def materialize(self, data, type_spec):
        self.calls += 1
        await asyncio.sleep(0)
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


async def compute(executor, computation, *arguments):
    function = await executor.create_value(computation)
    argument = None
    if arguments:
        argument = await executor.create_value(arguments[0], computation.type_signature.parameter)
    return await (await executor.create_call(function, argument)).compute()


def stack(leaf, clients=0):
    return ReferenceResolvingExecutor(FederatingExecutor(SequenceExecutor(leaf), clients))


async def test_data_executor_resolves_data_through_its_backend():
    backend = Backend(5)
    executor = stack(DataExecutor(LeafExecutor(), backend))
    assert await compute(executor, data_computation(np.int32, 1)) == 5
    assert backend.calls == 1
    executor.close()


async def test_data_that_does_not_fit_its_type_is_refused_with_its_path():
    executor = stack(DataExecutor(LeafExecutor(), Backend("text")))
    with pytest.raises(TypeMismatchError, match=r"Expected int32, found str 'text'; at the data"):
        await compute(executor, data_computation(np.int32, 1))
    executor.close()


async def test_an_error_of_the_backend_reaches_the_caller():
    executor = stack(DataExecutor(LeafExecutor(), Backend(FileNotFoundError("gone"))))
    with pytest.raises(FileNotFoundError, match="gone"):
        await compute(executor, data_computation(np.int32, 1))
    executor.close()


async def test_data_without_a_backend_is_an_error_that_names_the_content_and_the_executor():
    executor = stack(LeafExecutor())
    with pytest.raises(CarrierError, match="google.protobuf.Int32Value; add to the stack a DataExecutor"):
        await compute(executor, data_computation(np.int32, 1))
    executor.close()


def test_a_sync_context_resolves_data_through_its_backend():
    with fedstack.use_context(fedstack.create_sync_local_execution_context(data_backend=Backend(7))):
        assert data_computation(np.int32, 1)() == 7


MODEL = OrderedDict(w=fl.TensorType(np.float32, [3]), b=np.float32)


@fedstack.python_computation([MODEL, np.int32], np.float32)
def use(model, x):
    return model["b"]


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(np.int32, fl.CLIENTS))
def broadcast_and_sum(model, xs):
    return fl.federated_sum(fl.federated_map(use, (fl.federated_broadcast(model), xs)))


def test_sizing_factory_counts_what_is_broadcast_and_what_is_aggregated_per_client():
    factory = fedstack.sizing_executor_factory()
    context = fedstack.contexts.SyncExecutionContext(factory)
    with fedstack.use_context(context):
        broadcast_and_sum({"w": [1.0, 2.0, 3.0], "b": 1.0}, [1, 2])
    sizes = factory.get_size_info()
    assert sizes.broadcast_bits == {0: 128, 1: 128}
    assert sizes.aggregate_bits == {0: 32, 1: 32}
    assert (sizes.total_broadcast_bits, sizes.total_aggregate_bits) == (256, 64)
    assert sizes.broadcast_elements[0] == {"float32": 4}
    sizes.clear()
    assert sizes.total_broadcast_bits == 0
    context.close()


def test_sizing_counts_long_vectors_that_are_only_summed():
    @fl.federated_computation(fl.FederatedType(fl.TensorType(np.float32, [5000]), fl.CLIENTS))
    def total(xs):
        return fl.federated_sum(xs)

    factory = fedstack.sizing_executor_factory()
    context = fedstack.contexts.SyncExecutionContext(factory)
    with fedstack.use_context(context):
        total([np.ones(5000, np.float32)] * 2)
    assert factory.get_size_info().aggregate_bits == {0: 160_000, 1: 160_000}
    context.close()


async def test_sizing_executor_counts_values_created_and_computed_through_the_verbs():
    executor = SizingExecutor(LeafExecutor())
    value = await executor.create_value([1, 2, 3], fl.TensorType(np.int32, [3]))
    await value.compute()
    assert executor.get_size_info().total_broadcast_bits == 96
    assert executor.get_size_info().total_aggregate_bits == 96
    executor.close()


async def test_transforming_executor_rewrites_computations_and_passes_values():
    seen = []

    def spy(block):
        seen.append(type(block).__name__)
        return block

    executor = TransformingExecutor(spy, stack(LeafExecutor()))
    assert await compute(executor, double, 4) == 8
    assert seen == ["CompiledComputation"] or seen == ["Data"]
    executor.close()


@pytest.mark.parametrize("above", [ReferenceResolvingExecutor, SizingExecutor, SequenceExecutor])
async def test_what_executors_above_a_transforming_one_run_is_rewritten_too(above):
    product = fedstack.python_computation([np.int32, np.int32], np.int32)(lambda x, y: x * y).to_building_block()

    def multiply(block):
        return product if block.type_signature.is_equivalent_to(product.type_signature) else block

    executor = above(TransformingExecutor(multiply, stack(LeafExecutor())))
    assert await compute(executor, add, (3, 5)) == 15
    assert await executor.prepared(add)((np.int32(3), np.int32(5))) == 15
    executor.close()


async def test_transforming_executor_refuses_a_transformation_that_changes_the_type_or_returns_something_else():
    wrong_type = TransformingExecutor(lambda block: add.to_building_block(), stack(LeafExecutor()))
    with pytest.raises(InvalidComputationError, match="Expected the transformation to preserve the type"):
        await wrong_type.create_value(double)
    nothing = TransformingExecutor(lambda block: None, stack(LeafExecutor()))
    with pytest.raises(InvalidComputationError, match="found None"):
        await nothing.create_value(double)


class ForeignValue(fl.framework.ExecutorValue):
    def __init__(self, value, type_spec):
        self.value, self.type = value, type_spec

    @property
    def type_signature(self):
        return self.type

    @property
    def reference(self):
        return self.value

    async def compute(self):
        await asyncio.sleep(0)
        return self.value


class ForeignExecutor(fl.framework.Executor):
    """An executor that shares nothing with ours but the language's interface; it runs one computation, `double`."""

    def __init__(self):
        self.calls = 0
        self.closed = False

    def close(self):
        self.closed = True

    async def create_value(self, value, type_spec=None):
        return ForeignValue(value, type_spec)

    async def create_call(self, comp, arg=None):
        self.calls += 1
        assert isinstance(comp.value, (computation_pb2.Computation, fl.framework.ConcreteComputation))
        return ForeignValue(np.int32(arg.value * 2), comp.type.result)

    async def create_struct(self, elements):
        raise NotImplementedError

    async def create_selection(self, source, index):
        raise NotImplementedError


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def double_and_sum(xs):
    return fl.federated_sum(fl.federated_map(double, xs))


async def test_an_executor_of_another_origin_is_driven_one_by_one_below_ours():
    foreign = ForeignExecutor()
    executor = stack(foreign, clients=3)
    assert await compute(executor, double_and_sum, [1, 2, 3]) == 12
    assert foreign.calls == 3
    executor.close()
    assert foreign.closed


def test_a_context_runs_over_a_factory_of_executors_of_another_origin():
    class ForeignFactory(fl.framework.ExecutorFactory):
        def create_executor(self, cardinalities):
            return ForeignExecutor()

        def clean_up_executor(self, cardinalities):
            pass

    with fedstack.use_context(fedstack.contexts.SyncExecutionContext(ForeignFactory())):
        assert double(4) == 8


async def test_sequences_are_mapped_over_an_executor_of_another_origin():
    @fl.federated_computation(fl.SequenceType(np.int32))
    def total(xs):
        return fl.sequence_sum(fl.sequence_map(double, xs))

    executor = stack(ForeignExecutor())
    assert await compute(executor, total, [1, 2]) == 6
    executor.close()
