"""A task of a cluster hosts a dispatcher or a data worker beside its computations and methods."""

import numpy as np

import fedstack
from fedstack.leaves import CarrierPolicy
from fedstack.service import ClusterSpec, Server, ServerConfig, rpc
from fedstack.service.coordinator import ClusterCoordinator
from fedstack.service.data import Dataset, DispatcherConfig, WorkerConfig, distribute, register_dataset

POLICY = CarrierPolicy(python_code=True)


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return 2 * x


def test_the_server_of_a_task_has_computations_methods_and_data():
    services = [DispatcherConfig().service()]
    with Server({"dispatcher": ["localhost:0"]}, config=ServerConfig(services=services)) as dispatcher:
        reads = WorkerConfig(dispatcher.target, policy=POLICY).service()
        with Server({"worker": ["localhost:0"]}, config=ServerConfig(policy=POLICY, services=[reads])) as worker:
            worker.register("double", double)
            spec = ClusterSpec({"dispatcher": [dispatcher.target], "worker": [worker.target]})
            dataset = Dataset.range(5).apply(distribute("distributed_epoch", spec.job("dispatcher")))
            assert sorted(dataset) == list(range(5))
            with ClusterCoordinator(spec) as coordinator:
                assert coordinator.schedule(double, (3,)).get(30) == 6
            with rpc.Client.create("grpc", spec.job("worker")) as client:
                assert client.double_blocking(4) == 8


def test_a_dispatcher_of_a_task_has_a_journal(tmp_path):
    config = DispatcherConfig(work_dir=tmp_path, fault_tolerant_mode=True)
    with Server({"d": ["localhost:0"]}, config=ServerConfig(services=[config.service()])) as server:
        assert register_dataset(server.target, Dataset.range(5), dataset_id="numbers") == "numbers"
    with Server({"d": ["localhost:0"]}, config=ServerConfig(services=[config.service()])) as server:
        assert register_dataset(server.target, Dataset.range(5), dataset_id="numbers") == "numbers"
