"""Runs clients that only wait: how many of them wait at once in the first call of a function, and what that takes."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement
from fedstack.executors.concurrency.leaf_threads import CORES
from fedstack.service.pool.worker_pool import local_worker_pool

_AT_ONCE = max(32, CORES)
# Threads come one by one, each after a look of 5 ms at what the others do.
_WIDENING_SECONDS = 0.5


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures the first and the second call, in this process and on one and two workers."""
    clients, seconds = effort.pick((4, 0.01), (96, 0.2), (200, 0.5))
    for workers in (0, 1, 2):
        with local_worker_pool(workers) if workers else nullcontext() as pool:
            if pool is None:
                context = fedstack.create_sync_local_execution_context()
            else:
                context = fedstack.create_sync_remote_execution_context(pool)
            with context, fedstack.use_context(context):
                wait = _waiting(seconds)
                for call in ("first", "second"):
                    yield from _measure(wait, clients, seconds, workers, call)


def _measure(wait: Any, clients: int, seconds: float, workers: int, call: str) -> Iterator[Measurement]:
    begin = time.monotonic()
    spans = [(float(start), float(end)) for start, end in wait([0] * clients)]
    took = time.monotonic() - begin
    where = f"{workers} worker{'s' * (workers > 1)}" if workers else "no worker"
    name = f"{clients} × {seconds:g} s of waiting, {where}, {call} call"
    at_once = max(sum(start <= begin < end for start, end in spans) for begin, _ in spans)
    places = _AT_ONCE * max(1, workers)
    expected = min(places, clients)
    yield Measurement(f"{name}, at once", at_once, expected, None, f"{expected}", "count")
    least = -(-clients // places) * seconds
    yield Measurement(name, took, least, least + _WIDENING_SECONDS, f"≤ {_WIDENING_SECONDS:g} s more")


def _waiting(seconds: float) -> Any:
    @fedstack.python_computation([np.int32], [np.float64, np.float64])
    def wait(_: Any) -> tuple[float, float]:
        begin = time.monotonic()
        time.sleep(seconds)
        return begin, time.monotonic()  # one clock for all processes of a machine

    return fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))(lambda x: fl.federated_map(wait, x))
