"""A session that ends in the midst of a phase: only the clients that are left run in the next one."""

import time
from collections.abc import AsyncGenerator

import federated_language as fl
import numpy as np

import fedstack
from fedstack.backends import elastic_phase
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import StaleSessionError
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.frames import Header
from fedstack.transport.wire.parcels import Parcel, Piece

CLIENTS = 24


class EndingSession(InMemoryConnection):
    """A connection on which the session ends once a worker has handed in its first clients."""

    def __init__(self, service: ExecutorService) -> None:
        super().__init__(service)
        self.requests: list[PhaseRequest] = []

    async def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        pieces = super().exchange(path, parcel)
        try:
            if path.endswith("/RunPhase"):
                self.requests.append(PhaseRequest.FromString(parcel.header))
            async for piece in pieces:
                yield piece
                if isinstance(piece, Header) and len(self.requests) == 1:
                    raise StaleSessionError("Expected a session, found that its lease ran out")
        finally:
            await pieces.aclose()


@fedstack.python_computation(np.float32, np.float32)
def wait(value):
    time.sleep(0.02)
    return np.sin(value)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def mean(values):
    return fl.federated_mean(fl.federated_map(wait, values))


def test_only_the_clients_that_were_not_handed_in_run_in_the_next_session(monkeypatch) -> None:
    monkeypatch.setattr(elastic_phase, "HAND_IN_SECONDS", 0.05)
    values = [0.1 * client for client in range(CLIENTS)]
    service = ExecutorService(fedstack.local_executor_factory(max_concurrent_clients=1))
    connection = EndingSession(service)
    with SyncExecutionContext(fedstack.remote_executor_factory([ExecutorStub(connection)])) as context:
        found = context.invoke(mean, values)
    io_loop.run_sync(service.close())
    with fedstack.create_sync_local_execution_context() as local:
        assert found.tobytes() == local.invoke(mean, values).tobytes()
    first, second = connection.requests
    assert (first.first_client, first.clients) == (0, CLIENTS)
    assert 0 < second.first_client < CLIENTS
    assert second.first_client + second.clients == CLIENTS
