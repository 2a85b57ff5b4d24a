"""A channel of the user's own takes a stub to a worker, and stays the user's."""

import asyncio
import contextlib
import socket
import threading
import time
from concurrent import futures

import federated_language as fl
import grpc
import grpc.aio
import numpy as np
import pytest
import remote_stacks
from federated_language import CLIENTS, FederatedType, federated_computation, federated_mean, federated_sum

import fedstack
from fedstack.errors import InvalidValueError, LeafError, NoWorkersError, WorkerUnavailableError
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.grpc.channel_connection import ChannelConnection
from fedstack.transport.peers.executor_stub import ExecutorStub

pytestmark = [pytest.mark.slow, pytest.mark.fedstack_leak_check(False)]  # gRPC keeps threads of a channel for a while

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
    with grpc.insecure_channel(remote_stacks.loopback_target().removeprefix("grpc://")) as channel:
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


def test_credentials_that_nobody_would_use_are_refused():
    credentials = fedstack.ClientCredentials(token="secret")
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        for target, what in ((channel, "channel"), (ExecutorStub(ChannelConnection(channel)), "stub")):
            for targets in (target, ["127.0.0.1:1", target]):
                with pytest.raises(InvalidValueError, match=f"Expected no credentials for a {what}") as caught:
                    fedstack.create_sync_remote_execution_context(targets, credentials=credentials)
                assert "secret" not in str(caught.value)


@pytest.mark.long
def test_several_channels_are_told_apart():
    with grpc.insecure_channel("127.0.0.1:1") as first, grpc.insecure_channel("127.0.0.1:1") as second:
        context = fedstack.create_sync_remote_execution_context([first, second], connect_seconds=0.1)
        with fedstack.use_context(context), pytest.raises(NoWorkersError) as caught:
            total([np.zeros(20_000, np.float32)])
        context.close()
    assert list(caught.value.causes) == ["the peer of a channel", "the peer of channel 2"]


@contextlib.contextmanager
def nowhere():
    """Yields an address at which nobody listens, until a server of the test does."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def test_what_is_wrong_behind_a_channel_is_said_as_of_an_address():
    with nowhere() as address, grpc.insecure_channel(address) as channel:
        connection = ChannelConnection(channel)
        with pytest.raises(WorkerUnavailableError, match="no server is listening") as caught:
            await connection.wait_ready(1.0)
        assert caught.value.causes == {"the peer of a channel": "no server is listening (connection refused)"}
        assert not await connection.look(0.1)


async def test_a_channel_that_its_owner_has_closed_is_called_closed():
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        pass
    with pytest.raises(WorkerUnavailableError, match="The channel to the peer of a channel is not usable"):
        await ChannelConnection(channel).wait_ready(20.0)


async def test_a_channel_is_ready_once_there_is_a_server_however_often_it_was_asked_before():
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
    with nowhere() as address, grpc.insecure_channel(address, options) as channel:
        connection = ChannelConnection(channel)
        for _ in range(3):
            with pytest.raises(WorkerUnavailableError):
                await connection.wait_ready(0.2)
        waiting = asyncio.ensure_future(connection.wait_ready(20.0))
        server = grpc.server(futures.ThreadPoolExecutor(1))
        server.add_insecure_port(address)
        server.start()
        try:
            await waiting
            assert await connection.look(20.0)
        finally:
            server.stop(None).wait()


class _FoundByWaiting(InMemoryConnection):
    """A connection that cannot look at once whether its peer is back."""

    back = threading.Event()

    @property
    def can_look(self):
        return False

    async def wait_ready(self, seconds):
        for _ in range(round(seconds / 0.01)):
            if self.back.is_set():
                return
            await asyncio.sleep(0.01)
        raise WorkerUnavailableError("not there")

    async def look(self, seconds):
        return self.back.is_set()


def test_a_worker_that_only_waiting_finds_is_given_the_time_that_it_was_left_alone():
    connection = _FoundByWaiting(ExecutorService(local_executor_factory()))
    seconds_later = 0.0
    driver = Workers(
        [Worker(ExecutorStub(connection))], connect_seconds=20.0, clock=lambda: time.monotonic() + seconds_later
    )

    async def ready_while_it_comes_back():
        timer = asyncio.get_running_loop().call_later(1.5, connection.back.set)
        try:
            return await driver.ready()
        finally:
            timer.cancel()

    driver._members.waited(in_vain=True)
    with pytest.raises(NoWorkersError):
        asyncio.run(ready_while_it_comes_back())
    assert not connection.back.is_set()
    seconds_later = 20.0
    assert [worker.is_ready for worker in asyncio.run(ready_while_it_comes_back())] == [True]
    driver.close()
