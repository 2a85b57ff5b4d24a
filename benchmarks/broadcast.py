"""Sends a model to clients that each send an update back: the time, and memory that must not grow with the clients."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import federated_language as fl
import numpy as np
from numpy.typing import NDArray

import fedstack
from benchmarks.harness import Effort, Floor, Measurement, compare, compare_with_all
from benchmarks.memory import in_fresh_process, peak_resident_bytes
from benchmarks.stack import TwoThreads, running

Model = NDArray[np.float32]


def update(model: Any, x: Any) -> Any:
    """Returns what a client sends back."""
    return model - x


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures the time for many clients and the peak memory for few and many."""
    size = effort.pick(5000, 1_000_000, 1_000_000)
    few, many = effort.pick((2, 4), (20, 200), (100, 1000))
    name = f"broadcast {size:,} to {many:,} clients"
    model = np.random.default_rng(7).standard_normal(size, np.float32)
    values = [float(i % 10) for i in range(many)]
    mean = _mean_update(size)
    with running(1):
        assert np.allclose(mean(model, values), _loop(model, values), atol=1e-4)
        yield compare(
            f"{name}, 1 thread", lambda: _loop(model, values), lambda: mean(model, values), effort, times=1.15
        )
        yield compare(
            f"{name}, 1 thread, same tree",
            lambda: _tree(model, values),
            lambda: mean(model, values),
            effort,
            times=1.15,
        )
    with running(2), TwoThreads() as two:
        floors = [
            Floor(lambda: _loop_by_two(model, values, two), times=1.15),
            Floor(lambda: _loop(model, values), "to one thread", 0.95),
        ]
        yield from compare_with_all(f"{name}, 2 threads", floors, lambda: mean(model, values), effort)
    processes = effort.pick(1, 3, 3)
    few_peaks, many_peaks = ([_peak(size, clients) for _ in range(processes)] for clients in (few, many))
    yield Measurement(
        f"broadcast {size:,}, peak memory {few:,} → {many:,} clients",
        min(many_peaks),
        min(few_peaks),
        1.1 * min(few_peaks),
        "≤ 1.1 ×",
        "bytes",
        {"worst_floor": max(few_peaks), "worst_subject": max(many_peaks)},
    )


def _peak(size: int, clients: int) -> float:
    return float(cast(int, in_fresh_process(__name__, "peak_of_a_round", size, clients)))


def peak_of_a_round(size: int, clients: int) -> int:
    """Returns the peak memory of this whole process after two rounds."""
    mean = _mean_update(size)
    model = np.ones(size, np.float32)
    with running(None):
        for _ in range(2):
            mean(model, [1.0] * clients)
    return peak_resident_bytes()


def _mean_update(size: int) -> Callable[[Model, Sequence[float]], Model]:
    model_type = fl.TensorType(np.float32, [size])
    leaf = fedstack.python_computation([model_type, np.float32], model_type)(update)

    @fl.federated_computation(fl.FederatedType(model_type, fl.SERVER), fl.FederatedType(np.float32, fl.CLIENTS))
    def mean_update(model: Any, values: Any) -> Any:
        return fl.federated_mean(fl.federated_map(leaf, (fl.federated_broadcast(model), values)))

    return cast("Callable[[Model, Sequence[float]], Model]", mean_update)


def _loop(model: Model, values: Sequence[float]) -> Model:
    total = _sum_updates(model, values)
    np.divide(total, np.float32(len(values)), out=total)
    return total


def _loop_by_two(model: Model, values: Sequence[float], two: TwoThreads) -> Model:
    middle = len(values) // 2
    first, second = two.run(lambda: _sum_updates(model, values[:middle]), lambda: _sum_updates(model, values[middle:]))
    total = np.add(cast(Model, first), cast(Model, second), out=cast(Model, first))
    np.divide(total, np.float32(len(values)), out=total)
    return total


def _sum_updates(model: Model, values: Sequence[float]) -> Model:
    total = update(model, values[0])
    for value in values[1:]:
        # What the client's own function allocates is its own: only the addition is in place.
        np.add(total, update(model, value), out=total)
    return cast(Model, total)


def _tree(model: Model, values: Sequence[float]) -> Model:
    """Adds along the tree that sums promise, which more buffers take part in: where these leave the cache, it tells."""
    waiting: list[Model] = []
    for client, value in enumerate(values):
        total = update(model, value)
        while client & 1:
            left = waiting.pop()
            np.add(left, total, out=total)
            del left  # before the next client asks for memory
            client >>= 1
        waiting.append(total)
        del total
    total = waiting.pop()
    while waiting:
        np.add(waiting.pop(), total, out=total)
    np.divide(total, np.float32(len(values)), out=total)
    return total
