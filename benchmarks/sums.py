"""Sums vectors of clients: the time, the error and the memory beside NumPy's in-place additions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import federated_language as fl
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Effort, Measurement, compare
from benchmarks.memory import allocated_peak
from benchmarks.stack import TwoThreads, running

Vector = NDArray[np.float32]
_MOST_VECTORS = 3
# What the tree of partial results takes, of parts of vectors that fit into a cache, however long the vectors are.
_TREE_BYTES = 4 << 20


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures `federated_sum` for a few numbers and sizes of vectors."""
    shapes = effort.pick(
        [(3, 5000)], [(1000, 100_000), (10, 10_000_000)], [(1000, 100_000), (10, 10_000_000), (100, 10_000_000)]
    )
    yield from _measure_small(effort.pick(10, 1000, 1000), 1000, effort)
    for clients, size in shapes:
        yield from _measure(clients, size, effort)


def _measure_small(clients: int, size: int, effort: Effort) -> Iterator[Measurement]:
    """Measures vectors that cost less to add than to call NumPy for each."""
    vectors, total = _vectors(clients, size), _federated_sum(size)
    with running(1):
        name = f"sum {clients:,} × {size:,}, 1 thread"
        yield compare(name, lambda: _add_up(vectors), lambda: total(vectors), effort, times=1.5)


def _measure(clients: int, size: int, effort: Effort) -> Iterator[Measurement]:
    name = f"sum {clients:,} × {size:,}"
    vectors = _vectors(clients, size)
    total = _federated_sum(size)
    with running(1):
        yield compare(f"{name}, 1 thread", lambda: _add_up(vectors), lambda: total(vectors), effort, times=1.1)
    with running(2), TwoThreads() as two:
        yield compare(
            f"{name}, 2 threads", lambda: _add_up_by_two(vectors, two), lambda: total(vectors), effort, times=1.15
        )
        bytes_of_one = vectors[0].nbytes
        yield Measurement(
            f"{name}, memory",
            allocated_peak(lambda: total(vectors)),
            bytes_of_one,
            max(_MOST_VECTORS * bytes_of_one, bytes_of_one + _TREE_BYTES),
            f"≤ {_MOST_VECTORS} vectors, or one and {_TREE_BYTES >> 20} MB",
            "bytes",
        )
        exact = np.zeros(size, np.float64)
        for vector in vectors:
            exact += vector
        in_order = float(np.max(np.abs(_add_up(vectors) - exact)))
        pairwise = float(np.max(np.abs(total(vectors) - exact)))
        yield Measurement(f"{name}, error", pairwise, in_order, in_order, "≤ 1 ×", "error")


def _vectors(clients: int, size: int) -> list[Vector]:
    """Returns normally distributed vectors that share no memory; far quicker than to draw each."""
    random = np.random.default_rng(7)
    base = random.standard_normal(size, np.float32)
    return [np.roll(base, int(random.integers(size))) * np.float32(random.uniform(0.5, 1.5)) for _ in range(clients)]


def _federated_sum(size: int) -> Callable[[Sequence[Vector]], Vector]:
    @fl.federated_computation(fl.FederatedType(fl.TensorType(np.float32, [size]), fl.CLIENTS))
    def total(values: Any) -> Any:
        return fl.federated_sum(values)

    return cast("Callable[[Sequence[Vector]], Vector]", total)


def _add_up(vectors: Sequence[Vector]) -> Vector:
    total = np.empty_like(vectors[0])
    _add_range(vectors, total, 0, len(total))
    return total


def _add_up_by_two(vectors: Sequence[Vector], two: TwoThreads) -> Vector:
    total = np.empty_like(vectors[0])
    size = len(total)
    two.run(lambda: _add_range(vectors, total, 0, size // 2), lambda: _add_range(vectors, total, size // 2, size))
    return total


def _add_range(vectors: Sequence[Vector], total: Vector, low: int, high: int) -> None:
    out = total[low:high]
    np.copyto(out, vectors[0][low:high])
    for vector in vectors[1:]:
        np.add(out, vector[low:high], out=out)
