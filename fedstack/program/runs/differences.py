"""Says what differs between two sets of values with names: metrics, states of programs and of clients."""

import json
from collections.abc import Mapping
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.foundations.value_text import describe, shorten


@attrs.frozen
class Difference:
    """A value that differs between two runs.

    Attributes:
      name: The name of the value.
      text: Both values, or what they are.
      largest: The largest absolute difference of two numbers; `None` if the values are no numbers of one shape.
    """

    name: str
    text: str
    largest: float | None


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[Difference]:
    """Returns what differs between values with names, in their bits."""
    found: list[Difference] = []
    for name in dict.fromkeys([*one, *other]):
        if name not in one or name not in other:
            found.append(Difference(name or "the value", f"only in the {'first' if name in one else 'second'}", None))
        elif (difference := _difference(name or "the value", one[name], other[name])) is not None:
            found.append(difference)
    return found


def _difference(name: str, one: object, other: object) -> Difference | None:
    left, right = _numbers(one), _numbers(other)
    if left is None or right is None or (left.shape, left.dtype) != (right.shape, right.dtype):
        same = type(one) is type(other) and _text(one) == _text(other)
        return None if same else Difference(name, f"{_text(one)} / {_text(other)}", None)
    if left.tobytes() == right.tobytes():
        return None
    wide = np.dtype({"c": "clongdouble", "V": "float64"}.get(left.dtype.kind, "longdouble"))
    x, y = left.astype(wide), right.astype(wide)
    with np.errstate(invalid="ignore"):
        apart = np.where((x == y) | ((x != x) & (y != y)), 0, np.abs(x - y))  # infinity, or NaN, in both
    text = f"{_text(one)} / {_text(other)}" if left.ndim == 0 else describe(one)
    return Difference(name, text, float(np.max(apart)))


def _numbers(value: object) -> "NDArray[Any] | None":
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(cast("NDArray[Any]", value))
        return array if array.dtype.kind in "biufcV" else None
    if isinstance(value, (bool, float, complex)) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return np.asarray(value)
    if isinstance(value, list):  # an array in a row of metrics
        array = np.asarray(cast("list[Any]", json.loads(json.dumps(value))), object)
        return array.astype(float) if all(type(one) in (int, float) for one in array.flat) else None
    return None


def _text(value: object) -> str:
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        return f"{describe(array)} {shorten(array.tolist())}"
    return shorten(cast("np.generic", value).item() if isinstance(value, np.generic) else value)
