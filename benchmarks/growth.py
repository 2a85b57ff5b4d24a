"""Measures what many workers cost where they are driven: workers of this process that only sleep."""

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement
from benchmarks.sleeping_workers import LosableConnection, SleepingRunner, SleepingService
from fedstack.contexts import ResourceManagingExecutorFactory, SyncExecutionContext
from fedstack.executors import ComposingExecutor, LeafExecutor, ReferenceResolvingExecutor, SequenceExecutor
from fedstack.transport.peers.executor_stub import ExecutorStub

_REACH_SECONDS = 0.5e-3
# Workers end one after the other, as they do: what is done at each end is done as often as there are workers.
_SHORTEST_SECONDS, _SPREAD_SECONDS = 0.02, 0.3
_IDLE_SECONDS = 2.0


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures phases over runners, and over workers behind connections."""
    values = [np.float32(1)] * effort.pick(8, 10_000, 1_000_000)
    for workers in effort.pick((2,), (10, 100), (10, 100, 1000)):
        yield from _composed(workers, values, effort)
        yield from _remote(workers, values, effort)


def _seconds(workers: int) -> list[float]:
    """Returns how long workers sleep, in no order."""
    seconds = _SHORTEST_SECONDS + _SPREAD_SECONDS * np.arange(workers) / workers
    return np.random.default_rng(7).permutation(seconds).tolist()


def _composed(workers: int, values: Sequence[object], effort: Effort) -> Iterator[Measurement]:
    counts = [len(part) for part in np.array_split(np.arange(len(values)), workers)]
    runners = [SleepingRunner(seconds) for seconds in _seconds(workers)]
    composing = ComposingExecutor(SequenceExecutor(LeafExecutor()), runners, counts)
    executor = ReferenceResolvingExecutor(composing)
    factory = ResourceManagingExecutorFactory(lambda _: executor)
    with SyncExecutionContext(factory) as context, fedstack.use_context(context):
        yield _measured("a phase over runners", workers, lambda: _check(values), effort)


def _remote(workers: int, values: Sequence[object], effort: Effort) -> Iterator[Measurement]:
    services = [SleepingService(seconds) for seconds in _seconds(workers)]
    connections = [LosableConnection(service, f"worker-{index}") for index, service in enumerate(services)]
    factory = fedstack.remote_executor_factory([ExecutorStub(connection) for connection in connections])
    context = SyncExecutionContext(factory, retry_policy=fedstack.RetryPolicy(first_pause=0.001))
    once = Effort(effort.size, 1, 0.0)
    with fedstack.use_context(context):
        yield _measured("connecting and a phase", workers, lambda: _check(values), once)
        yield _measured("a phase", workers, lambda: _check(values), effort, _REACH_SECONDS)
        seconds = effort.pick(0.01, 0.5, _IDLE_SECONDS)
        yield _measured(f"{seconds:g} s without a call", workers, lambda: time.sleep(seconds), once)
        connections[workers // 2].is_cut = True
        logging.disable(logging.WARNING)  # it is said that the computation is run again
        yield _measured("a phase with a loss, and again", workers, lambda: _check(values), once)
        logging.disable(logging.NOTSET)
    yield _measured("closing", workers, context.close, once)


def _check(values: Sequence[object]) -> None:
    total = _count(values)
    assert total == len(values), f"Expected {len(values)} clients, found {total}"


def _measured(
    what: str, workers: int, call: Callable[[], object], effort: Effort, limit: float | None = None
) -> Measurement:
    """Measures the time that the processor is at work for this process, per worker: the best of some turns."""
    best = float("inf")
    for _ in range(effort.repetitions):
        gc.collect()
        begin = time.process_time()
        call()
        best = min(best, time.process_time() - begin)
    limit = limit if workers >= 1000 else None  # with few workers it is the clients that count
    reach = "" if limit is None else f"≤ {limit * 1e3:g} ms"
    details = {"workers": workers, "seconds": best}
    return Measurement(f"{what}, {workers:,} workers, each", best / workers, None, limit, reach, details=details)


@fedstack.python_computation([np.float32], np.float32)
def _same(value: np.float32) -> np.float32:
    return value


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def _count(values: fl.Value) -> fl.Value:
    return fl.federated_sum(fl.federated_map(_same, values))
