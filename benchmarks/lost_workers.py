"""Runs rounds while workers are killed: how much of an undisturbed round's speed is left.

Four workers of a pool run clients that wait, eight at a time. In each disturbed round, a worker drawn by seed is sent
SIGKILL at times drawn uniformly, `k` times per duration of an undisturbed round. Disturbed and undisturbed rounds
alternate, and the figure is the ratio of their mean durations.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement
from fedstack.service.pool.worker_pool import WorkerPool, local_worker_pool

_WORKERS, _AT_ONCE = 4, 8
_SIZE = 250  # a sum of 1 kB


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures rounds with two kills, and with a kill in every fifth round."""
    seconds, rounds, client = effort.pick((0.5, 1, 0.05), (4.0, 3, 0.2), (10.0, 30, 0.2))
    clients = int(seconds / client) * _WORKERS * _AT_ONCE
    with local_worker_pool(_WORKERS, options=("--threads", str(_AT_ONCE))) as pool:
        context = fedstack.create_sync_remote_execution_context(pool)
        with context, fedstack.use_context(context):
            total = _total_of(client)
            total([0] * _WORKERS * _AT_ONCE)
            for kills in (2.0, 0.2):
                yield _measured(pool, total, clients, client, rounds, kills)


def _measured(pool: WorkerPool, total: Any, clients: int, client: float, rounds: int, kills: float) -> Measurement:
    rng = np.random.default_rng(0)
    undisturbed: list[float] = []
    disturbed: list[float] = []
    for number in range(rounds):
        undisturbed.append(_timed(total, clients))
        expected = undisturbed[-1]
        count = int((number + 1) * kills) - int(number * kills)
        times = sorted(rng.uniform(0, expected, count))
        killer = threading.Thread(target=_kill, args=(pool, times, rng))
        killer.start()
        disturbed.append(_timed(total, clients))
        killer.join()
        time.sleep(2.0)  # every worker is back before the next undisturbed round
    name = f"{clients} clients of {client:g} s, {kills:g} kills a round, {rounds} rounds"
    floor, took = sum(undisturbed) / rounds, sum(disturbed) / rounds
    return Measurement(f"{name} (floor: undisturbed)", took, floor, floor / 0.85, "≥ 0.85 of the speed")


def _timed(total: Any, clients: int) -> float:
    begin = time.perf_counter()
    assert total([1] * clients)[0] == clients
    return time.perf_counter() - begin


def _kill(pool: WorkerPool, times: list[float], rng: np.random.Generator) -> None:
    begin = time.perf_counter()
    for at in times:
        time.sleep(max(0.0, at - (time.perf_counter() - begin)))
        os.kill(pool.pids[int(rng.integers(len(pool.pids)))], signal.SIGKILL)


def _total_of(seconds: float) -> Any:
    @fedstack.python_computation([np.int32], fl.TensorType(np.float32, [_SIZE]))
    def wait(value: Any) -> Any:
        time.sleep(seconds)
        return np.full(_SIZE, value, np.float32)

    return fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))(
        lambda values: fl.federated_sum(fl.federated_map(wait, values))
    )
