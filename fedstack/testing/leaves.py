"""Leaf computations that several conformance rows share."""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import attrs
import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import ConcreteComputation, SequenceType, StructType
from fedstack.data.client_data import batches

INTS = (np.int32, [3])
# A product of matrices is rounded in another way if it has another number of rows.
FACTORS = np.sin(np.arange(20 * 300, dtype=np.float32)).reshape(20, 300)


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
    """Returns seven, and has no parameters."""
    return np.int32(7)


@python_computation([np.int32], np.int32)
def fail(x: Any) -> Any:
    """Raises a `KeyError`."""
    raise KeyError(f"no luck with {x}")


@python_computation([np.float32], np.float32)
def halve(x: Any) -> Any:
    """Halves a floating-point number."""
    return x * np.float32(0.5)


@python_computation([(np.float32, [20])], (np.float32, [300]), vectorized=True)
def multiply_rows(rows: Any) -> Any:
    """Multiplies the vectors of several clients by the same matrix."""
    return rows @ FACTORS


@python_computation([np.str_, np.str_], np.str_)
def concatenate(x: Any, y: Any) -> Any:
    """Concatenates two strings, so that the result shows the order of the operations."""
    return x + y


@python_computation([SequenceType((np.float32, [4]))], np.float32)
def add_all(arrays: Any) -> Any:
    """Sums all elements of all arrays in a sequence."""
    return np.float32(sum(float(array.sum()) for array in arrays))


@python_computation([SequenceType((np.float32, [4]))], np.float32)
def add_all_at_once(arrays: Any) -> Any:
    """Sums all elements of all arrays in a sequence, after collecting the arrays in a list."""
    return np.float32(sum(float(array.sum()) for array in list(arrays)))


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.array = np.zeros(4, np.float32)


_scratch = _Scratch()


@python_computation([np.float32], [(np.float32, [4]), (np.float32, [2])])
def fill_scratch(x: Any) -> Any:
    """Returns an array that every call reuses and overwrites, and a view of the array."""
    _scratch.array[:] = x
    return [_scratch.array, _scratch.array[::2]]


@python_computation([np.float32], SequenceType((np.float32, [4])))
def list_scratch(x: Any) -> Any:
    """Returns a list with an array that every call reuses and overwrites."""
    _scratch.array[:] = x
    return [_scratch.array]


@python_computation([np.float32], SequenceType((np.float32, [None])))
def batch_scratch(x: Any) -> Any:
    """Returns batches of an array that every call reuses and overwrites."""
    _scratch.array[:] = x
    return batches(_scratch.array, 2)


@python_computation([SequenceType([("b", np.int32), ("a", np.int32)])], np.int32)
def pick_elements(pairs: Any) -> Any:
    """Returns a number that shows whether the length, indices and slices of a sequence of structs are correct."""
    first, last, middle = pairs[0], pairs[-1], pairs[1:3]
    return np.int32(1000 * len(pairs) + 100 * first.a + 10 * last["b"] + len(middle) + sum(pair.a for pair in middle))


class Pair(NamedTuple):
    """A named tuple with two members."""

    first: Any
    second: Any


@attrs.frozen
class Point:
    """An attrs class with two members."""

    x: Any
    y: Any


_STRUCTS: dict[str, object] = {
    "dict": {"b": np.int32, "a": np.int32},
    "ordered": OrderedDict(d=np.int32, c=np.int32),
    "pair": Pair(np.int32, [np.int32]),
    "point": Point(np.int32, (np.int32, np.int32)),
    "record": StructType([("f", np.int32), ("e", np.int32)]),
    "elements": SequenceType({"h": np.int32, "g": np.int32}),
}


@python_computation([_STRUCTS], np.str_)
def tell_containers(x: Any) -> Any:
    """Describes the container of each member of the parameter: the names that it yields, or its class."""
    told = ["".join(x), "".join(x["dict"]), "".join(x["ordered"]), str(isinstance(x["pair"], Pair))]
    told += [type(x["pair"].second).__name__, str(type(x["point"]) is Point), type(x["point"].y).__name__]
    told += [str([int(member) for member in x["record"]]), *("".join(element) for element in x["elements"])]
    return "; ".join(told)


def identity(type_spec: object) -> ConcreteComputation:
    """Returns a leaf computation that returns its argument."""

    def same(x: Any) -> Any:
        return x

    return python_computation([type_spec], type_spec)(same)
