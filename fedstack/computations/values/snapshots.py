"""Copies arrays that a function has returned and that somebody else may still write into.

A function may return a buffer that it fills anew in its next call, and what it returned for one client must not become
what it returns for the next. An array that nobody else has needs no copy (`ownership.py`), and most are such.
"""

import operator
import sys
from collections.abc import Callable, Iterator
from typing import Protocol, cast, runtime_checkable

import numpy as np

from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar
from fedstack.computations.values.ownership import BUFFER_OF_ONE
from fedstack.computations.values.tensor_values import read_only


@runtime_checkable
class HoldsArrays(Protocol):
    """A sequence over arrays that are there."""

    def snapshot(self, keep: Callable[[np.ndarray], np.ndarray]) -> object:
        """Returns the sequence over arrays that stay as they are, each as `keep` returns it."""
        ...


_at = cast("Callable[[object, int], object]", operator.getitem)

# Takes a payload and the argument of the call that made it, and returns a payload that nobody can change.
Snapshot = Callable[[object, object], object]


def snapshot_of(result: Type) -> Snapshot | None:
    """Returns what makes a payload of a type one that stays as it is; `None` if any does.

    Of sequences the arrays are that are there. Elements that a function makes are taken when they come.
    """
    if isinstance(result, TensorType):
        return None if is_scalar(result) else _stays
    if isinstance(result, SequenceType):
        element = snapshot_of(result.element)
        return lambda payload, argument: _sequence_stays(payload, argument, element)
    if not isinstance(result, StructType):
        return None
    members = [(index, make) for index, (_, t) in enumerate(fields_of(result)) if (make := snapshot_of(t)) is not None]
    if not members:
        return None

    def struct(payload: object, argument: object) -> object:
        changed: list[object] | None = None
        for index, make in members:
            member = _at(payload, index)
            made = make(member, argument)
            if made is not member:
                changed = changed or list(cast("tuple[object, ...]", payload))
                changed[index] = made
        return payload if changed is None else tuple(changed)

    return struct


def _sequence_stays(payload: object, argument: object, element: Snapshot | None) -> object:
    given = cast("tuple[object, ...]", argument) if isinstance(argument, tuple) else (argument,)
    if any(payload is member for member in given):
        return payload  # the caller's, and as such not the function's to fill
    if isinstance(payload, HoldsArrays):
        return payload.snapshot(lambda array: cast(np.ndarray, _stays(array, None)))
    if element is None or not isinstance(payload, list):
        return payload
    members = cast("list[object]", payload)
    return [element(member, None) for member in members]


def _stays(payload: object, argument: object) -> object:
    if type(payload) is not np.ndarray:
        return payload
    base: object = payload.base
    if isinstance(base, np.ndarray):
        # The usual case first: a view of an array that only this view has.
        if base.base is None and sys.getrefcount(base) == BUFFER_OF_ONE:
            return payload
        if not base.flags.writeable:
            return payload
        if any(array is payload or array is base or array.base is base for array in _arrays_in(argument)):
            return payload  # the caller's, and as such not the function's to fill
    # Payloads cannot be written into themselves; what they are views of may be.
    elif base is None or type(base) is bytes:
        return payload
    return read_only(payload.copy())


def _arrays_in(payload: object) -> Iterator[np.ndarray]:
    if isinstance(payload, np.ndarray):
        yield payload
    elif type(payload) is tuple:
        for member in cast("tuple[object, ...]", payload):
            yield from _arrays_in(member)
