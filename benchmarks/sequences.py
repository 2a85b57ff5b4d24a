"""Gives functions their clients' sequences: lists of pairs and batches of arrays, here and over a worker."""

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement, compare
from benchmarks.memory import allocated_peak
from benchmarks.stack import running
from fedstack.service.pool.worker_pool import local_worker_pool

_PAIR = fl.to_type([np.float64, np.float64])
_IMAGES = fl.to_type({"image": (np.float32, [None, 64]), "digit": (np.int32, [None])})
_ROWS = fl.TensorType(np.float64, [None])
_CLIENTS = 10
_BATCH = 32
# In bytes of the data: one copy for the whole, one on the way to it.
_MOST_MEMORY = 3.0
_MOST_MEMORY_OF_ARRAYS = 2.0


def _dot(pairs: Any) -> Any:
    total = 0.0
    for x, y in pairs:
        total += x * y
    return total


def _brightest(batches: Any) -> Any:
    return max((float(batch["image"].max()) for _ in range(3) for batch in batches), default=0.0)


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures lists of pairs and batches of arrays, here and over a worker, and the memory that they take."""
    with running(1):
        yield from _measure("here", effort, lambda data: data, effort.pick(None, 4.0, 4.0))
    with (
        local_worker_pool(1) as pool,
        contextlib.closing(fedstack.create_sync_remote_execution_context(pool)) as context,
        fedstack.use_context(context),
    ):
        yield from _measure("over 1 worker", effort, _pickled, effort.pick(None, 4.0, 4.0))


def _pickled(data: Any) -> Any:
    return pickle.loads(pickle.dumps(data, protocol=5))


def _measure(where: str, effort: Effort, moved: Callable[[Any], Any], times: float | None) -> Iterator[Measurement]:
    rows = effort.pick(10, 5_000, 20_000)
    pairs = [[(float(i), float(client)) for i in range(rows)] for client in range(_CLIENTS)]
    dot = _summed(_dot, fl.SequenceType(_PAIR))
    arrays = [{"image": np.ones((rows, 64), np.float32), "digit": np.zeros(rows, np.int32)} for _ in range(_CLIENTS)]
    batches = [fedstack.batches(part, _BATCH) for part in arrays]
    brightest = _summed(_brightest, fl.SequenceType(_IMAGES))

    def loop() -> float:
        # Functions get NumPy's numbers, which take their time.
        return sum(_dot((np.float64(x), np.float64(y)) for x, y in some) for some in moved(pairs))

    def batch_loop() -> float:
        cut = (
            [{k: a[i : i + _BATCH] for k, a in part.items()} for i in range(0, rows, _BATCH)] for part in moved(arrays)
        )
        return sum(map(_brightest, cut))

    assert dot(pairs) == loop()
    assert brightest(batches) == batch_loop()
    name = f"{_CLIENTS} × {rows:,}"
    yield compare(f"{name} pairs from lists, {where}", loop, lambda: dot(pairs), effort, times=times)
    yield compare(f"{name} rows in batches, {where}", batch_loop, lambda: brightest(batches), effort, times=2.0)
    size = 16 * rows * _CLIENTS
    yield _memory(f"memory of pairs from lists, {where}", lambda: dot(pairs), size, _MOST_MEMORY)
    vectors = [np.arange(float(rows)) for _ in range(_CLIENTS)]
    added = _added()
    whole = allocated_peak(lambda: _whole()(vectors))
    size = 8 * rows * _CLIENTS
    limit = _MOST_MEMORY_OF_ARRAYS * max(whole, size)
    yield Measurement(
        f"memory of a sequence_sum of arrays, {where}", allocated_peak(lambda: added(vectors)), whole, limit,
        "≤ 2 × one array a client", "bytes",
    )  # fmt: skip


def _memory(name: str, call: Callable[[], object], size: int, times: float) -> Measurement:
    return Measurement(name, allocated_peak(call), size, times * size, f"≤ {times:g} × the data", "bytes")


def _summed(function: Callable[[Any], Any], sequence: fl.SequenceType) -> Callable[[Sequence[Any]], Any]:
    leaf = fedstack.python_computation([sequence], np.float64)(function)

    @fl.federated_computation(fl.FederatedType(sequence, fl.CLIENTS))
    def summed(data: Any) -> Any:
        return fl.federated_sum(fl.federated_map(leaf, data))

    return summed


def _added() -> Callable[[Sequence[Any]], Any]:
    @fl.federated_computation(fl.SequenceType(np.float64))
    def total(values: Any) -> Any:
        return fl.sequence_sum(values)

    @fl.federated_computation(fl.FederatedType(fl.SequenceType(np.float64), fl.CLIENTS))
    def added(data: Any) -> Any:
        return fl.federated_sum(fl.federated_map(total, data))

    return added


def _whole() -> Callable[[Sequence[Any]], Any]:
    total = fedstack.python_computation([_ROWS], np.float64)(lambda values: values.sum())

    @fl.federated_computation(fl.FederatedType(_ROWS, fl.CLIENTS))
    def whole(data: Any) -> Any:
        return fl.federated_sum(fl.federated_map(total, data))

    return whole
