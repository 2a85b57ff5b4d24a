"""Runs rounds over a pool of processes: beside bare tasks of the same pool with the same arrays, and beside workers."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, cast

import federated_language as fl
import numpy as np
from numpy.typing import NDArray

import fedstack
from benchmarks.fedavg import make_clients, make_round
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from fedstack.contexts import SyncExecutionContext
from fedstack.service.pool.worker_pool import local_worker_pool

Vector = NDArray[np.float32]
_VECTOR = 10_000
_WORKERS = 2


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures a mean of vectors, and a round of training."""
    with ProcessPoolExecutor(_WORKERS, multiprocessing.get_context("spawn")) as pool:
        with SyncExecutionContext(fedstack.pool_executor_factory(pool)):
            yield from _measure_mean(pool, effort)
        yield from _measure_training(pool, effort)


def sum_of(vectors: Sequence[Vector]) -> Vector:
    """Returns the sum of vectors; what a bare task does."""
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total


def make_mean(effort: Effort, workers: int) -> tuple[Callable[[Sequence[Vector]], Vector], list[Vector], int]:
    """Returns the mean of vectors, the vectors, and how many of them each of so many workers has."""
    clients = effort.pick(4, 1000, 1000)
    random = np.random.default_rng(7)
    vectors = [random.standard_normal(_VECTOR, np.float32) for _ in range(clients)]

    @fl.federated_computation(fl.FederatedType(fl.TensorType(np.float32, [_VECTOR]), fl.CLIENTS))
    def mean(values: Any) -> Any:
        return fl.federated_mean(values)

    return cast("Callable[[Sequence[Vector]], Vector]", mean), vectors, clients // workers


def _measure_mean(pool: ProcessPoolExecutor, effort: Effort) -> Iterator[Measurement]:
    mean, vectors, share = make_mean(effort, _WORKERS)

    def bare() -> Vector:
        tasks = [pool.submit(sum_of, vectors[i * share : (i + 1) * share]) for i in range(_WORKERS)]
        return sum_of([task.result() for task in tasks]) / np.float32(len(vectors))

    assert np.allclose(mean(vectors), bare(), atol=1e-6)
    name = f"mean of {len(vectors):,} × {4 * _VECTOR // 1000} kB over a pool of {_WORKERS} processes"
    yield from compare_with_all(name, [Floor(bare, "to bare tasks", 1.3)], lambda: mean(vectors), effort)


def _measure_training(pool: ProcessPoolExecutor, effort: Effort) -> Iterator[Measurement]:
    model, data = make_clients(effort)
    streams = [fedstack.batches(client, 20) for client in data]
    average = make_round(*model["weights"].shape)
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(local_worker_pool(_WORKERS))
        over_workers = stack.enter_context(fedstack.create_sync_remote_execution_context(workers))
        over_pool = stack.enter_context(SyncExecutionContext(fedstack.pool_executor_factory(pool)))

        def in_context(context: SyncExecutionContext) -> Any:
            with fedstack.use_context(context):
                return average(model, streams)

        assert np.array_equal(in_context(over_pool)["weights"], in_context(over_workers)["weights"])
        floor = Floor(lambda: in_context(over_workers), "to a pool of workers", 1.5)
        name = f"FedAvg, {len(data)} clients, over a pool of {_WORKERS} processes"
        yield from compare_with_all(name, [floor], lambda: in_context(over_pool), effort)
