"""Trains clients that are all Python on two workers: such work holds the interpreter, so only processes help."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import federated_language as fl
import numpy as np

import fedstack
from benchmarks import python_training
from benchmarks.bare_process import BareProcess
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from benchmarks.python_training import FEATURES, train
from fedstack.service.pool.worker_pool import local_worker_pool

Model = Sequence[float]
_WORKERS = 2


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures a round beside the same work in two bare processes, and in one."""
    clients = effort.pick(4, 40, 40)
    steps = effort.pick(2, 2000, 4000)
    model = [0.1 * i for i in range(FEATURES)]
    seeds = list(range(1, clients + 1))
    average = _round()
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(BareProcess(python_training.__name__, python_training.train_all.__name__))
            for _ in range(_WORKERS)
        ]
        pool = stack.enter_context(local_worker_pool(_WORKERS))
        stack.enter_context(fedstack.create_sync_remote_execution_context(pool))

        def spread(number: int) -> list[float]:
            """Spreads the clients over a number of processes."""
            for index, process in enumerate(processes[:number]):
                process.start(model, seeds[index::number], steps)
            parts = [cast("list[float]", process.finish()) for process in processes[:number]]
            return [sum(changes) / clients for changes in zip(*parts)]

        assert np.allclose(average(model, seeds, steps), spread(_WORKERS), atol=1e-5)
        floors = [
            Floor(lambda: spread(_WORKERS), f"to {_WORKERS} processes", 1 / 0.9, "≥ 0.9 × their gain"),
            Floor(lambda: spread(1), "to one process"),
        ]
        name = f"FedAvg in Python, {clients} × {steps} steps, {_WORKERS} workers"
        yield from compare_with_all(name, floors, lambda: average(model, seeds, steps), effort)


def _round() -> Callable[[Model, Sequence[int], int], Sequence[float]]:
    model_type = fl.StructType([np.float32] * FEATURES)
    leaf = fedstack.python_computation([model_type, np.int64, np.int32], model_type)(train)

    @fl.federated_computation(
        fl.FederatedType(model_type, fl.SERVER),
        fl.FederatedType(np.int64, fl.CLIENTS),
        fl.FederatedType(np.int32, fl.SERVER),
    )
    def average(model: Any, seeds: Any, steps: Any) -> Any:
        argument = (fl.federated_broadcast(model), seeds, fl.federated_broadcast(steps))
        return fl.federated_mean(fl.federated_map(leaf, argument))

    return cast("Callable[[Model, Sequence[int], int], Sequence[float]]", average)
