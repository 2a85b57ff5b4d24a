"""Workers behind gRPC as a backend: who watches hears who is there; plain services keep sessions between phases."""

import threading
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
import remote_stacks

import fedstack
from fedstack.backends.remote_contexts import remote_executor_factory
from fedstack.backends.workers_backend import WorkersBackend
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import LeafError
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

INT = fl.TensorType(np.int64)


@fedstack.python_computation(INT, INT)
def inverse(value):
    return 60 // int(value)


@fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
def total(values):
    return fl.federated_sum(fl.federated_map(inverse, values))


@pytest.fixture
def service() -> Iterator[ExecutorService]:
    yield remote_stacks.new_service()
    remote_stacks.stop_servers()


def test_who_watches_hears_of_each_worker_that_joins_and_leaves(service: ExecutorService) -> None:
    first, second = (Worker(ExecutorStub(InMemoryConnection(service, name))) for name in ("a", "b"))
    backend, changes = WorkersBackend(Workers([first])), threading.Semaphore(0)
    end = backend.watch(lambda: changes.release())
    try:
        assert io_loop.run_sync(backend.places()) == [first]
        assert changes.acquire(timeout=60)
        backend.workers.add(second)
        assert changes.acquire(timeout=60)
        assert io_loop.run_sync(backend.places()) == [first, second]
        backend.workers.remove(first)
        assert changes.acquire(timeout=60)
        assert io_loop.run_sync(backend.places()) == [second]
        end()
        backend.workers.remove(second)
        assert not changes.acquire(timeout=0)
    finally:
        backend.close()


def test_a_plain_service_has_a_session_for_each_number_of_clients_and_another_one_after_an_error(
    service: ExecutorService,
) -> None:
    connection = InMemoryConnection(service)
    stub = ExecutorStub(connection, **remote_stacks.PLAIN)

    def sessions() -> int:
        return sum(call.endswith("GetExecutor") for call in connection.calls)

    with SyncExecutionContext(remote_executor_factory([stub]), retry_policy=fedstack.RetryPolicy.none()) as context:
        with fedstack.use_context(context):
            assert total([1, 2, 3]) == total([3, 2, 1]) == 110
            assert sessions() == 1
            assert total([6, 10]) == 16
            assert sessions() == 2
            with pytest.raises(LeafError):
                total([1, 2, 0])
            assert total([1, 2, 3]) == 110
            assert sessions() == 3
