"""Holds the leaf computations that several conformance rows use."""

from typing import Any

import numpy as np

from fedstack.computations.language import ConcreteComputation
from fedstack.computations.python_computation import python_computation

INTS = (np.int32, [3])


@python_computation([np.int32, np.int32], np.int32)
def add(x: Any, y: Any) -> Any:
    """Adds two integers."""
    return x + y


@python_computation([np.int32], np.int32)
def double(x: Any) -> Any:
    """Doubles an integer."""
    return x * np.int32(2)


@python_computation([], np.int32)
def seven() -> Any:
    """Returns seven, without a parameter."""
    return np.int32(7)


@python_computation([np.int32], np.int32)
def fail(x: Any) -> Any:
    """Raises."""
    raise KeyError(f"no luck with {x}")


@python_computation([np.float32], np.float32)
def halve(x: Any) -> Any:
    """Halves a floating number."""
    return x * np.float32(0.5)


@python_computation([np.str_, np.str_], np.str_)
def concatenate(x: Any, y: Any) -> Any:
    """Joins two strings: an operation that tells in which order it was used."""
    return x + y


def identity(type_spec: object) -> ConcreteComputation:
    """Returns a leaf that returns its argument."""

    def same(x: Any) -> Any:
        return x

    return python_computation([type_spec], type_spec)(same)
