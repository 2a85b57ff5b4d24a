"""Runs rounds with ever other numbers of clients: neither memory nor the number of live objects may grow."""

import gc
import sys
from collections.abc import Iterator
from typing import Any, TypedDict, cast

import federated_language as fl
import numpy as np
from federated_language.framework import ExecutorValue

import fedstack
from benchmarks.harness import Effort, Measurement
from benchmarks.memory import in_fresh_process, resident_bytes
from benchmarks.stack import running

# The heap of an interpreter at rest wanders by some hundred kilobytes, whatever runs.
_MOST_BYTES_PER_ROUND = 2048
_MOST_BLOCKS_PER_ROUND = 1.0
_MODEL = 10_000


class _Trace(TypedDict):
    resident: list[float]
    blocks: list[float]
    values: list[float]
    every: int


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures the slopes over the rounds, the first fifth left out."""
    rounds = effort.pick(10, 500, 500)
    trace = cast(_Trace, in_fresh_process(__name__, "trace_rounds", rounds))
    start = len(trace["resident"]) // 5
    details = {key: float(trace[key][-1]) for key in ("resident", "blocks", "values")}
    name = f"{rounds} rounds"
    for key, what, most, unit in (
        ("resident", "resident memory", _MOST_BYTES_PER_ROUND, "bytes"),
        ("blocks", "allocated blocks", _MOST_BLOCKS_PER_ROUND, "count"),
        ("values", "executor values", 0.01, "count"),
    ):
        kept = cast("list[float]", trace[key][start:])
        slope = _slope(kept) / trace["every"]
        reach = f"≤ {most:g} a round"
        yield Measurement(f"{name}, {what}, growth a round", slope, None, most, reach, unit, details)


def trace_rounds(rounds: int) -> _Trace:
    """Runs rounds of 1 to 60 clients and returns what this process holds after each few of them."""
    model_type = fl.TensorType(np.float32, [_MODEL])
    leaf = fedstack.python_computation([model_type, np.float32], model_type)(lambda model, x: model - x)

    @fl.federated_computation(fl.FederatedType(model_type, fl.SERVER), fl.FederatedType(np.float32, fl.CLIENTS))
    def average(model: Any, values: Any) -> Any:
        return fl.federated_mean(fl.federated_map(leaf, (fl.federated_broadcast(model), values)))

    every = max(1, rounds // 50)
    # Allocated in one piece, so that what is noted down is not taken for growth.
    found = np.zeros((3, -(-rounds // every)))
    numbers = np.random.default_rng(7).integers(1, 61, rounds).tolist()
    model = np.zeros(_MODEL, np.float32)
    with running(None):
        for number, clients in enumerate(numbers):
            model = average(model, [0.5] * clients)
            if number % every == 0:
                gc.collect()
                live = sum(isinstance(value, ExecutorValue) for value in gc.get_objects())
                found[:, number // every] = resident_bytes(), sys.getallocatedblocks(), live
    resident, blocks, values = found.tolist()
    return _Trace(resident=resident, blocks=blocks, values=values, every=every)


def _slope(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    return float(np.polyfit(np.arange(len(values)), np.asarray(values), 1)[0])
