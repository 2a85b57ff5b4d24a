"""Runs clients of workers whose inputs are large: how much longer a round takes because the inputs have to travel.

Clients only wait, four at a time on each of two workers of a pool, and each has megabytes of its own. The floor is the
time that the clients wait.
"""

import time
from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement
from fedstack.service.pool.worker_pool import local_worker_pool

_WORKERS, _AT_ONCE, _SECONDS = 2, 4, 0.05


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures rounds with large inputs, few and many."""
    cases: Any = effort.pick([(0.25, 16)], [(4.0, 80)], [(4.0, 104), (0.5, 400)])
    repetitions = effort.pick(1, 3, 5)
    options = ("--threads", str(_AT_ONCE))
    with local_worker_pool(_WORKERS, options=options) as pool, fedstack.create_sync_remote_execution_context(pool):
        for megabytes, clients in cases:
            yield _measured(megabytes, clients, repetitions)


def _measured(megabytes: float, clients: int, repetitions: int) -> Measurement:
    size = int(megabytes * 2**18)
    total, values = _total_of(size), [np.full(size, client, np.float32) for client in range(clients)]
    total(values)
    times: list[float] = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        assert total(values) == sum(range(clients))
        times.append(time.perf_counter() - begin)
    floor = clients * _SECONDS / (_WORKERS * _AT_ONCE)
    title = f"{clients} clients of {megabytes:g} MB and {_SECONDS:g} s (floor: their time)"
    return Measurement(title, min(times), floor, 1.5 * floor, "≤ 1.5 ×")


def _total_of(size: int) -> Any:
    vector = fl.TensorType(np.float32, [size])

    @fedstack.python_computation([vector], np.float32)
    def first_after_a_while(value: Any) -> Any:
        time.sleep(_SECONDS)
        return np.float32(value[0])

    return fl.federated_computation(fl.FederatedType(vector, fl.CLIENTS))(
        lambda values: fl.federated_sum(fl.federated_map(first_after_a_while, values))
    )
