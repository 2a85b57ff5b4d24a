"""Values stay at the workers that made them, however many calls follow."""

import numpy as np
import pytest

import fedstack
from fedstack.observe import Event, Observer, RpcEnded, add_observer
from fedstack.service import ExecutorService, GrpcServer, ServerThread
from fedstack.service.coordinator import ClusterCoordinator

SIZE = 8 << 20


class Bytes(Observer):
    """Counts what a server of this process has received and sent."""

    total = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, RpcEnded):
            self.total += event.bytes_received + event.bytes_sent


@fedstack.python_computation([], (np.float32, [None]))
def make():
    return np.zeros(SIZE, np.float32)


@fedstack.python_computation([(np.float32, [None])], (np.float32, [None]))
def add_one(x):
    return x + 1


@fedstack.python_computation([(np.float32, [None])], np.float32)
def last(x):
    return x[-1]


@pytest.mark.slow
def test_a_chain_over_a_large_value_sends_none_of_it() -> None:
    counted = Bytes()
    with (
        add_observer(counted),
        ServerThread(GrpcServer([ExecutorService(fedstack.local_executor_factory())])) as server,
        ClusterCoordinator(server.target) as coordinator,
    ):
        value = coordinator.schedule(make)
        for _ in range(20):
            value = coordinator.schedule(add_one, (value,))
        assert coordinator.schedule(last, (value,)).get() == 20.0
        coordinator.join()
    assert 0 < counted.total < 200_000


class Calls(Observer):
    """Counts the calls of a method that a server of this process has answered."""

    def __init__(self, method: str) -> None:
        self._method = method
        self.total = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, RpcEnded):
            self.total += event.method.endswith(self._method)


def test_values_of_one_worker_are_fetched_together() -> None:
    with (
        ServerThread(GrpcServer([ExecutorService(fedstack.local_executor_factory())])) as server,
        ClusterCoordinator(server.target) as coordinator,
    ):
        vectors = [coordinator.schedule(make) for _ in range(3)]
        numbers = [coordinator.schedule(last, ([float(number)],)) for number in range(250)]
        coordinator.join()
        counted = Calls("Evaluate")
        with add_observer(counted):
            found = coordinator.fetch({"vectors": vectors, "numbers": numbers})
        assert counted.total == 3
        assert found["numbers"] == [float(number) for number in range(250)]
        assert [vector.nbytes for vector in found["vectors"]] == [4 * SIZE] * 3
