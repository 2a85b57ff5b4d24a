"""Values stay at the workers that made them, however many calls follow."""

import numpy as np
import pytest
from await_until import await_until

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.observe import Event, Observer, RpcEnded, add_observer
from fedstack.service import ExecutorService, GrpcServer, ServerThread
from fedstack.service.coordinator import ClusterCoordinator
from fedstack.transport.peers.io_loop import io_loop

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


@pytest.mark.long
@pytest.mark.parametrize("function", [add_one, lambda x: x + np.float32(1)], ids=["computation", "function"])
def test_of_a_chain_the_worker_keeps_the_last_value_only(function: object) -> None:
    service = ExecutorService(fedstack.local_executor_factory(), policy=CarrierPolicy(python_code=True))
    with (
        ServerThread(GrpcServer([service])) as server,
        ClusterCoordinator(server.target) as coordinator,
        fedstack.executors.RemoteExecutor.connect(server.target) as watcher,
    ):
        value = coordinator.schedule(make)
        for _ in range(50):
            value = coordinator.schedule(function, (value,))
        coordinator.join()
        # What each call was made of is let go of with the next; the functions stay.
        await_until(lambda: io_loop.run_sync(watcher.stub.get_status()).values < 8)
        assert value.get()[-1] == 50.0


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
