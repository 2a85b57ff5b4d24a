"""Runs rounds whose clients may fail: what a policy costs without failures, with some, and with a client that is late.

The clients compute for a millisecond in pure Python, on one thread, or wait.
"""

import time
from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement, compare
from fedstack.contexts import SyncExecutionContext

_SECONDS = 1e-3
_EVERY = 10


@fedstack.python_computation([np.int32], np.int32)
def busy(x: Any) -> Any:
    if x < 0:
        raise ValueError("negative")
    until = time.perf_counter() + _SECONDS
    while time.perf_counter() < until:
        pass
    return x


@fedstack.python_computation([np.float32], np.float32)
def waits(seconds: Any) -> Any:
    if seconds < 0:
        raise ValueError("negative")
    time.sleep(float(seconds))
    return seconds


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def total(xs: Any) -> Any:
    return fl.federated_sum(fl.federated_map(busy, xs))


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def total_wait(xs: Any) -> Any:
    return fl.federated_sum(fl.federated_map(waits, xs))


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures rounds without failures, with a tenth of the clients failing, and with one that sleeps for 8 s."""
    clients = effort.pick(20, 200, 1000)
    values = [np.int32(client) for client in range(clients)]
    failing = [np.int32(-1) if client % _EVERY == 3 else value for client, value in enumerate(values)]
    left = [value for value in failing if value >= 0]
    with fedstack.create_sync_local_execution_context(max_concurrent_clients=1) as plain:
        tolerant = plain.with_options(client_failures=fedstack.ClientFailures())
        timed = plain.with_options(client_failures=fedstack.ClientFailures(client_seconds=5.0))
        for name, context, given, others, times in (
            ("a policy without failures (floor: no policy)", tolerant, values, values, 1.02),
            ("client_seconds without failures (floor: no policy)", timed, values, values, 1.2),
            ("a tenth fails at once (floor: the others)", tolerant, failing, left, 1.1),
        ):
            yield compare(
                f"{clients} clients of 1 ms, {name}",
                lambda others=others: _called(plain, total, others),
                lambda context=context, given=given: _called(context, total, given),
                effort,
                times=times,
                reach=f"≤ {times}",
            )
    waiting = [np.float32(-1 if client % 8 == 3 else 0.01) for client in range(50)]
    waiting[7] = np.float32(effort.pick(0.5, 8.0, 8.0))
    limit = effort.pick(0.1, 1.0, 1.0)
    policy = fedstack.ClientFailures(client_seconds=limit)
    with fedstack.create_sync_local_execution_context(client_failures=policy) as context:
        begin = time.perf_counter()
        _called(context, total_wait, waiting)
        took = time.perf_counter() - begin
    name = f"50 clients, 6 raise, one sleeps for 8 s, client_seconds={limit:g} (floor: client_seconds)"
    yield Measurement(name, took, limit, 1.3 * limit, "≤ 1.3")


def _called(context: SyncExecutionContext, computation: Any, values: Any) -> Any:
    with fedstack.use_context(context):
        return computation(values)
