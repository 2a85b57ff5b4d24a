"""Methods of tasks of a cluster, clients of whatever names one server, and methods that run on workers."""

import grpc
import numpy as np
import pytest
from served_methods import WALL, add, mean

import fedstack
from fedstack.errors import InvalidValueError
from fedstack.executors import TransformingExecutor
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.service import ClusterSpec, Server, rpc

MS = 1000 * WALL


@pytest.fixture
def task():
    with Server.create_local_server() as task:
        task.register("add", add)
        task.register("mean", mean)
        yield task


def test_a_task_of_a_cluster_has_methods(task):
    spec = ClusterSpec({"worker": [task.target], "ps": ["localhost:1", "localhost:2"]})
    for place in (task.target, task.target.removeprefix("grpc://"), spec, spec.job("worker")):
        with rpc.Client.create("grpc", place, timeout_in_ms=MS) as client:
            assert client.add_blocking(1, 2) == 3
    with pytest.raises(InvalidValueError, match="Expected the address of one server, found 2"):
        rpc.Client.create("grpc", spec.job("ps"))


def test_a_channel_of_the_users_leads_to_methods(task):
    with grpc.insecure_channel(task.target.removeprefix("grpc://")) as channel:
        with rpc.Client.create("grpc", channel, timeout_in_ms=MS) as client:
            assert client.add_blocking(1, 2) == 3
            assert client.mean_blocking([1.0, 2.0]) == 1.5
            array = np.zeros(1 << 20, np.float32)
            with pytest.raises(TypeError):
                client.add(array, array)


def test_a_method_runs_on_the_executors_of_its_servers_factory(task):
    factory = fedstack.remote_executor_factory(task.target)
    with rpc.Server.create("grpc", "localhost:0", factory=factory) as server:
        server.register("add", add)
        server.register("add_inline", add, inline=True)  # which may not wait on the loop, and so does not run there
        server.register("mean", mean)
        with rpc.Client.create("grpc", server.target, timeout_in_ms=MS) as client:
            assert client.mean_blocking([1.0, 2.0, 6.0]) == 3.0
            assert client.add_blocking(1, 2) == client.add_inline_blocking(1, 2) == 3


def test_a_method_is_what_an_executor_of_the_factory_makes_of_it():
    product = fedstack.python_computation({"x": np.int32, "y": np.int32}, np.int32)(lambda x, y: x * y)
    stacks = fedstack.local_executor_factory()
    factory = ResourceManagingExecutorFactory(
        lambda clients: TransformingExecutor(lambda _: product.to_building_block(), stacks.create_executor(clients))
    )
    with rpc.Server.create("grpc", "localhost:0", factory=factory) as server:
        server.register("add", add)
        server.register("add_inline", add, inline=True)
        with rpc.Client.create("grpc", server.target, timeout_in_ms=MS) as client:
            for _ in range(2):
                assert client.add_blocking(3, 5) == 15
                assert client.add_inline_blocking(3, 5) == 15
