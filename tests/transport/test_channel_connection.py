"""A channel of the user's own takes a stub to a worker, and stays the user's."""

import asyncio

import federated_language as fl
import grpc
import grpc.aio
import numpy as np
import pytest
import remote_stacks
from federated_language import CLIENTS, FederatedType, federated_computation, federated_mean, federated_sum

import fedstack
from fedstack.errors import InvalidValueError, LeafError, WorkerUnavailableError
from fedstack.transport.channel_connection import ChannelConnection
from fedstack.transport.executor_stub import ExecutorStub

pytestmark = pytest.mark.fedstack_leak_check(False)  # gRPC keeps threads of a channel for a while

VECTORS = FederatedType((np.float32, [20_000]), CLIENTS)


@federated_computation(VECTORS)
def total(vectors):
    return federated_sum(vectors)


@fedstack.python_computation([np.int32], np.float32)
def to_float(x):
    return np.float32(x)


@fedstack.python_computation([np.int32], np.int32)
def refuse(x):
    raise ValueError("no such number")


@federated_computation(FederatedType(np.int32, CLIENTS))
def refused(numbers):
    return federated_mean(fl.federated_map(to_float, fl.federated_map(refuse, numbers)))


@pytest.fixture(scope="module")
def channel():
    remote_stacks.start_servers()
    with grpc.insecure_channel(remote_stacks.loopback_target()) as channel:
        yield channel
    remote_stacks.stop_servers()


def test_a_factory_takes_a_channel_and_leaves_it_open(channel):
    vectors = [np.full(20_000, k, np.float32) for k in range(5)]
    for _ in range(2):
        context = fedstack.create_sync_remote_execution_context(channel)
        with fedstack.use_context(context):
            np.testing.assert_array_equal(total(vectors), np.full(20_000, 10, np.float32))
        context.close()


def test_errors_come_back_over_a_channel_as_over_a_target(channel):
    context = fedstack.create_sync_remote_execution_context(channel)
    with fedstack.use_context(context), pytest.raises(LeafError, match="no such number") as caught:
        refused([1, 2])
    assert caught.value.client_index in (0, 1)
    assert caught.value.executor_path[0] == "ReferenceResolvingExecutor"
    context.close()


def test_values_of_any_size_go_over_a_channel(channel):
    executor = remote_stacks.remote(0, ExecutorStub(ChannelConnection(channel)))
    value = np.arange(2_000_000, dtype=np.float32)

    async def there_and_back():
        return await (await executor.create_value(value, fl.TensorType(np.float32, [len(value)]))).compute()

    np.testing.assert_array_equal(asyncio.run(there_and_back()), value)
    executor.close()


def test_a_channel_to_nobody_is_an_unavailable_worker():
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        context = fedstack.create_sync_remote_execution_context(
            channel, connect_seconds=0.5, retry_policy=fedstack.RetryPolicy.none()
        )
        with fedstack.use_context(context), pytest.raises(WorkerUnavailableError):
            total([np.zeros(20_000, np.float32)])
        context.close()


async def test_a_channel_of_another_kind_is_refused_by_name():
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(InvalidValueError, match=r"grpc\.aio"):
            fedstack.remote_executor_factory(channel)
