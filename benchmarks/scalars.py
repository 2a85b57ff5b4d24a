"""Maps a plain Python function over clients and takes the mean: what a client costs, and what a call costs."""

from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement, compare, fit_line
from benchmarks.stack import running

_FIXED_SECONDS = 0.15e-3
_SECONDS_PER_CLIENT = 0.2e-6
_SECONDS_PER_STRUCT = 2e-6
FOUR = dict.fromkeys("abcd", np.float32)


def half(x: Any) -> Any:
    """Returns half of a number."""
    return x * 0.5


def turn(point: Any) -> dict[str, Any]:
    """Returns a struct of four, each made of two others."""
    a, b, c, d = point["a"], point["b"], point["c"], point["d"]
    return {"a": a - b, "b": b - c, "c": c - d, "d": d - a}


def total(point: Any) -> Any:
    """Returns the sum of a struct of four."""
    return point["a"] + point["b"] + point["c"] + point["d"]


def run_scalars(effort: Effort) -> Iterator[Measurement]:
    """Measures scalars for many numbers of clients, and what a call and a client cost over all of them."""
    leaf = fedstack.python_computation([np.float32], np.float32)(half)

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def mean_of_halves(values: Any) -> Any:
        return fl.federated_mean(fl.federated_map(leaf, values))

    def loop(values: list[float]) -> float:
        summed = 0.0
        for value in values:
            summed += half(value)
        return summed / len(values)

    found: list[Measurement] = []
    counts = effort.pick([2, 5], [10, 1000, 100_000], [10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000])
    with running(None):
        for count in counts:
            values = [float(i % 100) for i in range(count)]
            assert abs(mean_of_halves(values) - loop(values)) <= 1e-3 * loop(values)
            found.append(
                compare(
                    f"scalars, {count:,} clients",
                    lambda values=values: loop(values),
                    lambda values=values: mean_of_halves(values),
                    effort,
                    seconds=_FIXED_SECONDS + _SECONDS_PER_CLIENT * count,
                    reach="≤ 0.15 ms + 0.2 µs × N",
                )
            )
            yield found[-1]
    floor_fixed, floor_slope = fit_line(counts, [m.floor or 0.0 for m in found])
    fixed, slope = fit_line(counts, [m.subject for m in found])
    yield Measurement("scalars, fixed part", fixed, floor_fixed, _FIXED_SECONDS, "≤ 0.15 ms")
    yield Measurement("scalars, a client", slope, floor_slope, _SECONDS_PER_CLIENT, "≤ 0.2 µs")


def run_vectorized(effort: Effort) -> Iterator[Measurement]:
    """Measures scalars in a function that processes many clients in one call, from a list and from an array."""
    leaf = fedstack.python_computation([np.float32], np.float32, vectorized=True)(lambda x: x * np.float32(0.5))
    yield from measure_halves(leaf, "vectorized", effort)


def measure_halves(leaf: Any, kind: str, effort: Effort) -> Iterator[Measurement]:
    """Measures the mean of halves, from a list and from an array.

    Args:
      leaf: The computation that halves a number.
      kind: What it is, for the names of the lines.
      effort: How much to measure.
    """

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def mean_of_halves(values: Any) -> Any:
        return fl.federated_mean(fl.federated_map(leaf, values))

    count = effort.pick(5, 10_000, 10_000)
    array = np.arange(count, dtype=np.float32) % 100
    with running(None):
        for source, values, each in (("a list", array.tolist(), 0.13e-6), ("an array", array, 0.03e-6)):
            assert abs(mean_of_halves(values) - 0.5 * array.mean()) <= 1e-3 * array.mean()
            yield compare(
                f"scalars, {count:,} clients from {source}, {kind}",
                lambda: float((array * np.float32(0.5)).mean()),
                lambda values=values: mean_of_halves(values),
                effort,
                seconds=_FIXED_SECONDS + each * count,
                reach=f"≤ 0.15 ms + {each * 1e6:g} µs × N",
            )


def run_structs(effort: Effort) -> Iterator[Measurement]:
    """Measures structs of four numbers, into structs and into scalars."""
    point_type = fl.to_type(FOUR)
    points_type = fl.FederatedType(point_type, fl.CLIENTS)
    turn_leaf = fedstack.python_computation([point_type], point_type)(turn)
    total_leaf = fedstack.python_computation([point_type], np.float32)(total)

    @fl.federated_computation(points_type)
    def mean_of_structs(points: Any) -> Any:
        return fl.federated_mean(fl.federated_map(turn_leaf, points))

    @fl.federated_computation(points_type)
    def mean_of_scalars(points: Any) -> Any:
        return fl.federated_mean(fl.federated_map(total_leaf, points))

    def loop_structs(points: list[dict[str, float]]) -> dict[str, float]:
        summed = dict.fromkeys(FOUR, 0.0)
        for point in points:
            for name, value in turn(point).items():
                summed[name] += value
        return {name: value / len(points) for name, value in summed.items()}

    def loop_scalars(points: list[dict[str, float]]) -> float:
        summed = 0.0
        for point in points:
            summed += total(point)
        return summed / len(points)

    with running(None):
        for count in effort.pick([3], [10_000], [1000, 10_000, 100_000]):
            points = [{name: float(i % 7 + j) for j, name in enumerate(FOUR)} for i in range(count)]
            assert abs(mean_of_scalars(points) - loop_scalars(points)) < 1e-3 * loop_scalars(points)
            yield compare(
                f"structs of 4 into structs, {count:,} clients",
                lambda points=points: loop_structs(points),
                lambda points=points: mean_of_structs(points),
                effort,
                seconds=_FIXED_SECONDS + _SECONDS_PER_STRUCT * count,
                reach="≤ 0.15 ms + 2 µs × N",
            )
            yield compare(
                f"structs of 4 into scalars, {count:,} clients",
                lambda points=points: loop_scalars(points),
                lambda points=points: mean_of_scalars(points),
                effort,
                seconds=_FIXED_SECONDS + _SECONDS_PER_STRUCT * count,
                reach="≤ 0.15 ms + 2 µs × N",
            )
