"""A whole computation gives what the verbs give one by one, in executors that have a shorter way and in others."""

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import ClosedError, LeafError
from fedstack.executors import ReferenceResolvingExecutor, TransformingExecutor
from fedstack.executors.factories import local_executor_factory

AT_CLIENTS = fl.FederatedType(np.float32, fl.CLIENTS)


@fedstack.python_computation([np.float32], np.float32)
def half(value):
    if value < 0:
        raise ValueError("below zero")
    return value * np.float32(0.5)


@fl.federated_computation(AT_CLIENTS)
def mean(values):
    return fl.federated_mean(fl.federated_map(half, values))


@fl.federated_computation
def five():
    return fl.federated_value(np.float32(5), fl.SERVER)


@pytest.fixture(params=["shorter way", "verbs"])
def executor(request):
    stack = local_executor_factory().create_executor({fl.CLIENTS: 3})
    assert isinstance(stack, ReferenceResolvingExecutor)
    yield stack if request.param == "shorter way" else TransformingExecutor(lambda block: block, stack)
    stack.close()


async def by_verbs(executor, computation, values):
    argument = None if values is None else await executor.create_value(values, AT_CLIENTS)
    call = await executor.create_call(await executor.create_value(computation), argument)
    return await call.pull()


@pytest.mark.parametrize(("computation", "values"), [(mean, [1.0, 2.0, 6.0]), (five, None)], ids=["mean", "five"])
async def test_a_whole_computation_gives_what_the_verbs_give(executor, computation, values):
    payload = None if values is None else executor.normalized(values, AT_CLIENTS)
    assert await executor.prepared(computation)(payload) == await by_verbs(executor, computation, values)


async def test_a_leaf_function_is_a_whole_computation_too(executor):
    assert await executor.prepared(half)(np.float32(3)) == np.float32(1.5)


async def test_an_error_of_a_leaf_function_reaches_the_caller_each_time(executor):
    payload = executor.normalized([1.0, -2.0, 6.0], AT_CLIENTS)
    for _ in range(2):
        with pytest.raises(LeafError, match="below zero") as raised:
            await executor.prepared(mean)(payload)
        assert raised.value.client_index == 1


async def test_a_closed_executor_runs_none(executor):
    executor.close()
    with pytest.raises(ClosedError):
        await executor.prepared(five)(None)
