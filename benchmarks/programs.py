"""Runs a computation of many operations: what its first call costs beside tracing it, and what the next one costs."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement, compare
from benchmarks.stack import running

Run = Callable[[list[float]], list[float]]


def add_one(x: Any) -> Any:
    """Returns the next number."""
    return x + 1.0


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures a chain of federated maps over few clients."""
    maps = effort.pick(3, 100, 100)
    values = [float(i) for i in range(effort.pick(2, 10, 10))]
    name = f"{maps} maps over {len(values)} clients"

    def chain(leaf: Any) -> Run:
        @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
        def computation(x: Any) -> Any:
            for _ in range(maps):
                x = fl.federated_map(leaf, x)
            return x

        return cast(Run, computation)

    def new_leaf() -> object:
        # A new leaf each time, so that neither the language nor fedstack has seen the computation before.
        return fedstack.python_computation([np.float32], np.float32)(add_one)

    def loop() -> list[float]:
        current = values
        for _ in range(maps):
            current = [add_one(x) for x in current]
        return current

    with running(None):
        yield compare(
            f"{name}, decorator to first result",
            chain,
            lambda leaf: chain(leaf)(values),
            effort,
            times=2,
            reach="≤ 2 × the decorator",
            prepare=new_leaf,
        )
        known = chain(new_leaf())
        assert known(values) == loop()
        yield compare(f"{name}, again", loop, lambda: known(values), effort, seconds=1e-3)
