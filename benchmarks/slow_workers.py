"""Runs rounds with a worker that is four times slower, or stands still: how close a round comes to an ideal schedule.

Four workers of a pool run clients that wait. On one of them, each client waits four times as long. The ideal is a list
schedule of the same clients: each client, in order, runs in the slot that is free first. In the last rows, one of the
workers is stopped with SIGSTOP as the round begins, and the ideal is that of the other three.
"""

import heapq
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement
from fedstack.service.pool.worker_pool import local_worker_pool

_WORKERS, _FACTOR = 4, 4.0


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures clients of several durations, one at a time and 32 at a time on each worker."""
    rows = effort.pick(
        [(0.01, 1, 10)],
        [(0.01, 1, 40), (0.01, 32, 1600), (0.2, 1, 40), (0.2, 32, 160)],
        [(0.01, 1, 40), (0.01, 32, 3200), (0.2, 1, 40), (0.2, 32, 160), (1.0, 1, 40), (1.0, 32, 160)],
    )
    for seconds, at_once, each in rows:
        with local_worker_pool(_WORKERS, options=("--threads", str(at_once))) as pool:
            context = fedstack.create_sync_remote_execution_context(pool)
            with context, fedstack.use_context(context):
                total = _total_of(seconds, pool.pids[-1])
                total([1] * _WORKERS * at_once)
                took, clients = _timed(total, each * _WORKERS), each * _WORKERS
        ideal = _list_schedule(seconds, clients, at_once, [1.0] * (_WORKERS - 1) + [_FACTOR])
        name = f"{clients} clients of {seconds:g} s, {at_once} at a time, one of {_WORKERS} workers slow"
        yield Measurement(f"{name} (floor: list schedule)", took, ideal, 1.15 * ideal, "≤ 1.15")
    for seconds, at_once, each in effort.pick([(0.05, 8, 40)], [(0.2, 8, 160)], [(0.2, 8, 400)]):
        with local_worker_pool(_WORKERS, options=("--threads", str(at_once))) as pool:
            context = fedstack.create_sync_remote_execution_context(pool)
            with context, fedstack.use_context(context):
                total = _total_of(seconds, 0)
                total([1] * _WORKERS * at_once)
                os.kill(pool.pids[-1], signal.SIGSTOP)
                try:
                    took, clients = _timed(total, each * _WORKERS), each * _WORKERS
                finally:
                    os.kill(pool.pids[-1], signal.SIGCONT)
        ideal = _list_schedule(seconds, clients, at_once, [1.0] * (_WORKERS - 1))
        name = f"{clients} clients of {seconds:g} s, {at_once} at a time, one of {_WORKERS} workers stands still"
        yield Measurement(f"{name} (floor: list schedule of three)", took, ideal, 1.3 * ideal, "≤ 1.3")


def _list_schedule(seconds: float, clients: int, at_once: int, factors: list[float]) -> float:
    """Returns the time of a list schedule, in seconds."""
    slots = [(0.0, factor) for factor in factors for _ in range(at_once)]
    end = 0.0
    for _ in range(clients):
        free, factor = heapq.heappop(slots)
        heapq.heappush(slots, (free + seconds * factor, factor))
        end = max(end, free + seconds * factor)
    return end


def _timed(total: Any, clients: int) -> float:
    begin = time.perf_counter()
    assert total([1] * clients) == clients
    return time.perf_counter() - begin


def _total_of(seconds: float, slow_process: int) -> Any:
    @fedstack.python_computation(np.int32, np.int32)
    def wait(value):
        time.sleep(seconds * (_FACTOR if os.getpid() == slow_process else 1.0))
        return value

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(fl.federated_map(wait, values))

    return total
