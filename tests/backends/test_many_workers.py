"""A thousand workers in this process: the bits of the local stack, and work that grows with their number only."""

from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.membership import waits
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.limits import ServiceLimits
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

WORKERS = 1000
CLIENTS = 1500
VALUES = fl.FederatedType(np.float32, fl.CLIENTS)


@fedstack.python_computation([np.float32, np.float32], fl.TensorType(np.float32, [3]))
def spread(model: np.float32, x: np.float32) -> np.ndarray:
    return np.array([x * model, x - model, x], np.float32)


@fl.federated_computation(fl.FederatedType(np.float32, fl.SERVER), VALUES)
def round_of(model: fl.Value, values: fl.Value) -> fl.Value:
    spreads = fl.federated_map(spread, (fl.federated_broadcast(model), values))
    return fl.federated_mean(spreads), fl.federated_sum(spreads), fl.federated_max(values)


class Counting(InMemoryConnection):
    """A connection that counts how often it is looked at."""

    looks = 0

    def loss(self) -> None:
        Counting.looks += 1


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExecutorStub]]:
    """Stubs of a thousand workers, which are one service here."""
    monkeypatch.setattr(waits, "_SETTLE_SECONDS", 20.0)  # all are used together, however busy the machine is
    monkeypatch.setattr(Counting, "looks", 0)
    limits = ServiceLimits(max_sessions=2 * WORKERS)
    service = ExecutorService(fedstack.local_executor_factory(max_concurrent_clients=1), limits=limits)
    yield [ExecutorStub(Counting(service, f"worker-{index}")) for index in range(WORKERS)]
    io_loop.run_sync(service.close())


def bits(result: object) -> list[bytes]:
    return [np.asarray(member).tobytes() for member in result]  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_thousand_workers_give_the_bits_of_the_local_stack(workers: list[ExecutorStub]) -> None:
    values = list(np.random.default_rng(5).normal(size=CLIENTS).astype(np.float32))
    with fedstack.create_sync_local_execution_context() as local, fedstack.use_context(local):
        expected = bits(round_of(np.float32(0.1), values))
    factory = fedstack.remote_executor_factory(workers, connect_seconds=60.0)
    with SyncExecutionContext(factory) as context, fedstack.use_context(context):
        assert bits(round_of(np.float32(0.1), values)) == expected
        assert all(any(call.endswith("RunPhase") for call in stub.connection.calls) for stub in workers)
        # At the beginning, and a few times a second while they connect; and each when it answers.
        assert Counting.looks < WORKERS * WORKERS / 4
