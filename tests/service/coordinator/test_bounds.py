"""What coordinators keep at workers has bounds: executors for numbers of clients, and what functions keep."""

from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import FedstackError
from fedstack.leaves import CarrierPolicy
from fedstack.service import ClusterSpec, ExecutorService, GrpcServer, ServerThread, ServiceLimits
from fedstack.service.coordinator import ClusterCoordinator


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def total(values):
    return fl.federated_sum(values)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def same(values):
    return values


@pytest.fixture
def service() -> ExecutorService:
    return ExecutorService(
        fedstack.local_executor_factory(),
        limits=ServiceLimits(max_values=100),
        policy=CarrierPolicy(python_code=True),
    )


@pytest.fixture
def coordinator(service: ExecutorService) -> Iterator[ClusterCoordinator]:
    with ServerThread(GrpcServer([service])) as server, ClusterCoordinator(server.target) as coordinator:
        yield coordinator


def test_executors_that_hold_nothing_are_closed_when_there_are_many(
    service: ExecutorService, coordinator: ClusterCoordinator
) -> None:
    for _ in range(2):
        for clients in range(1, 41):
            assert coordinator.schedule(total, ([1.0] * clients,)).get() == clients
    assert len(service.sessions) <= 17


def test_executors_whose_values_are_on_their_way_stay(coordinator: ClusterCoordinator) -> None:
    values = [coordinator.schedule(total, ([1.0] * clients,), prefetch=True) for clients in range(1, 81)]
    assert coordinator.fetch(values) == list(range(1, 81))


def test_executors_that_hold_values_stay(coordinator: ClusterCoordinator) -> None:
    kept = {clients: coordinator.schedule(same, ([1.0] * clients,)) for clients in range(1, 41)}
    coordinator.join()
    for clients in range(41, 61):
        coordinator.schedule(total, ([1.0] * clients,))
    sums = {clients: coordinator.schedule(total, (value,)) for clients, value in kept.items()}
    assert coordinator.fetch(sums) == {clients: clients for clients in kept}


def test_what_functions_keep_counts_as_values(coordinator: ClusterCoordinator) -> None:
    values = [coordinator.create_per_worker_value([number]) for number in range(100)]
    with pytest.raises(FedstackError, match="Expected at most 100 values in a session"):
        coordinator.fetch([coordinator.schedule(lambda kept: kept[0], (value,)) for value in values])
    del values


@pytest.mark.long
def test_what_functions_keep_ends_with_what_stands_for_it(coordinator: ClusterCoordinator) -> None:
    def step(numbers: Iterator[int]) -> int:
        return next(numbers)

    dataset = coordinator.create_per_worker_dataset(lambda: range(3))
    for _ in range(150):  # an iterator for each epoch
        iterator = iter(dataset)
        epoch = [coordinator.schedule(step, (iterator,)) for _ in range(3)]
        assert sorted(coordinator.fetch(epoch)) == [0, 1, 2]


def test_a_coordinator_that_is_closed_has_dropped_its_variables_where_they_were(service: ExecutorService) -> None:
    with ServerThread(GrpcServer([service])) as server, ServerThread(GrpcServer([service])) as worker:
        spec = ClusterSpec({"worker": [worker.target], "ps": [server.target]})
        with ClusterCoordinator(spec) as coordinator:
            variable = coordinator.variable(1)
            assert variable.read_value() == 1
        assert len(service.sessions) == 0
