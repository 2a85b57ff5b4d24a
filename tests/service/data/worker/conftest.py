"""Starts data workers, each at a dispatcher that only has definitions."""

from collections.abc import Iterator

import pytest
from catalogue import Catalogue, StartWorker

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.service.data.worker.worker_server import WorkerConfig, WorkerServer
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.listening import GRPC
from fedstack.service.host.server_thread import ServerThread


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue()


@pytest.fixture
def dispatcher(catalogue: Catalogue) -> Iterator[str]:
    with ServerThread(GrpcServer([catalogue])) as server:
        yield server.target


@pytest.fixture
def start_worker(dispatcher: str) -> Iterator[StartWorker]:
    workers: list[WorkerServer] = []

    def start(protocol: str = GRPC, **options: object) -> WorkerServer:
        options.setdefault("policy", CarrierPolicy(python_code=True))
        worker = WorkerServer(WorkerConfig(dispatcher, protocol=protocol, **options))  # type: ignore[arg-type]
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.stop(0)
