"""Large inputs travel to a worker in pieces, while the clients before them run."""

import threading

import federated_language as fl
import numpy as np
import pytest
import remote_stacks
from watching import Diary

import fedstack
from fedstack import observe
from fedstack.backends import piece_runs
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import LeafError
from fedstack.observe import PhaseStarted
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

SIZE, CLIENTS = 250, 43
VECTOR = fl.TensorType(np.float32, [SIZE])
lock = threading.Lock()
begun: list[int] = []


@pytest.fixture(scope="module", autouse=True)
def servers():
    remote_stacks.start_servers()
    yield
    remote_stacks.stop_servers()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces of four clients, as if a vector of one kB had megabytes."""
    monkeypatch.setattr(piece_runs, "_LEAST_BYTES", 4 * 4 * SIZE)
    monkeypatch.setattr(piece_runs, "_MOST_BYTES", 4 * 4 * SIZE)
    begun.clear()


@fedstack.python_computation([VECTOR], VECTOR)
def scaled(values):
    with lock:
        begun.append(int(values[0]))
    if values[0] < 0:
        raise ValueError("negative")
    return values * np.float32(0.1)


@fedstack.python_computation([VECTOR, VECTOR], VECTOR)
def mixed(left, right):
    return left * np.float32(0.7) + right


@fedstack.python_computation([VECTOR], VECTOR)
def reported(total):
    return total


@fedstack.python_computation([VECTOR, VECTOR], np.float32)
def distance(values, mean):
    return np.sum((values - mean) ** 2)


@fl.federated_computation(fl.FederatedType(VECTOR, fl.CLIENTS))
def fold(values):
    """Two phases, both of which need the values."""
    kept = fl.federated_map(scaled, values)
    mean = fl.federated_mean(kept)
    distances = fl.federated_map(distance, (values, fl.federated_broadcast(mean)))
    zero = fl.federated_value(np.zeros(SIZE, np.float32), fl.SERVER)
    return mean, fl.federated_aggregate(kept, np.zeros(SIZE, np.float32), mixed, mixed, reported), kept, distances, zero


def values(failing: int | None = None) -> list[np.ndarray]:
    noise = np.random.default_rng(0).normal(size=(CLIENTS, SIZE)).astype(np.float32)
    noise[:, 0] = np.arange(CLIENTS)
    if failing is not None:
        noise[failing, 0] = -1
    return list(noise)


def bits(found) -> list[bytes]:
    *totals, kept, distances, _ = found
    return [np.asarray(one).tobytes() for one in (*totals, *kept, *distances)]


def context_over(factory) -> SyncExecutionContext:
    policy = fedstack.RetryPolicy(attempts=1000, first_pause=0.001, longest_pause=0.01)
    return SyncExecutionContext(factory, retry_policy=policy)


@pytest.mark.fedstack_leak_check(False)  # the servers live as long as the tests of this module
@pytest.mark.parametrize(
    "make",
    [
        lambda: remote_stacks.in_memory_workers(1),
        lambda: remote_stacks.in_memory_workers(3),
        remote_stacks.lossy_workers,
        lambda: remote_stacks.workers([remote_stacks.loopback_target()]),
    ],
)
def test_results_have_the_same_bits_as_in_one_piece(make) -> None:
    with fedstack.create_sync_local_execution_context():
        expected = bits(fold(values()))
    diary = Diary()
    with context_over(make()), observe.add_observer(diary):
        assert bits(fold(values())) == expected
        assert bits(fold(values())) == expected
    assert len([one for one in diary.of(PhaseStarted) if one.worker]) >= CLIENTS / 4


@pytest.mark.slow
def test_clients_of_a_piece_begin_after_those_of_the_piece_before() -> None:
    service = remote_stacks.new_service(fedstack.local_executor_factory(max_concurrent_clients=1))
    stub = ExecutorStub(InMemoryConnection(service))
    with fedstack.create_sync_remote_execution_context([stub]):
        fold(values())
    io_loop.run_sync(service.close())
    assert begun == [*range(CLIENTS)]


def test_the_error_is_that_of_the_first_client_that_fails() -> None:
    given = values(failing=21)
    given[35][0] = -1
    with context_over(remote_stacks.in_memory_workers(2)), pytest.raises(LeafError, match="negative; at client 21"):
        fold(given)
