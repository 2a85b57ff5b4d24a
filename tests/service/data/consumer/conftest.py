"""A dispatcher and workers, for tests of those who consume."""

from collections.abc import Callable, Iterator

import pytest
from calling import WALL

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.service.data import DispatchServer, WorkerConfig, WorkerServer

POLICY = CarrierPolicy(python_code=True)


@pytest.fixture
def service() -> Iterator[DispatchServer]:
    """A dispatcher with two workers."""
    with DispatchServer() as dispatcher, worker_of(dispatcher), worker_of(dispatcher):
        yield dispatcher


@pytest.fixture
def dispatcher() -> Iterator[DispatchServer]:
    """A dispatcher without workers."""
    with DispatchServer() as found:
        yield found


@pytest.fixture
def start_worker(dispatcher: DispatchServer) -> Iterator[Callable[[], WorkerServer]]:
    """Starts a worker of `dispatcher`."""
    workers: list[WorkerServer] = []

    def start(**options: object) -> WorkerServer:
        workers.append(worker_of(dispatcher, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop(0)


def worker_of(dispatcher: DispatchServer, **options: object) -> WorkerServer:
    return WorkerServer(WorkerConfig(dispatcher.target, policy=POLICY, dispatcher_timeout_ms=1000 * WALL, **options))  # type: ignore[arg-type]
