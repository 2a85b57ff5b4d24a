"""Determines whether an array has a single owner, and copies arrays to which other owners may still write.

As long as CPython has its global lock, reference counts reveal the owners. A payload array is a read-only view of
another array, its *buffer*. The following users need to know who else can access a buffer:

| user | question | required buffer | allowed references to the buffer | allowed references to the payload |
| --- | --- | --- | --- | --- |
| `snapshot_of` | may a result change after the function has returned it? | any | the payload | any |
| `take_buffer` | may a fold write into a result? | whole, large | the payload; no weak references | one list |
| `containers.py` | may the user keep the result? | whole | the payload | any; the payload is not used again |
| `phase_results.py` | may a fold write into a received array? | whole | not counted: new memory | any |

A buffer is *whole* if the payload shows the entire buffer, in the same order and dtype, and the buffer owns its memory
and is writable (`whole_buffer`). Memory that belongs to another object, such as a file, bytes or a tensor, may be
accessible through that object. If references cannot be counted, arrays never have a single owner and are copied.

Copies are necessary because a function may return a buffer that it fills again in its next call, and the result of one
client must not turn into the result of the next. Most returned arrays have a single owner and need no copy.
"""

import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar
from fedstack.computations.values.tensor_values import read_only

# Below this size in bytes, allocating a buffer is cheaper than checking whether an existing buffer can be taken.
_WORTH_TAKING = 16 * 1024


def _references_of_one_owner() -> tuple[int, int]:
    """Returns the reference counts of a payload that only a list references, and of a buffer with a single payload."""
    if not hasattr(sys, "getrefcount") or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0, 0
    payloads = [np.empty(1).view()]
    buffer = cast(np.ndarray, payloads[0].base)
    return sys.getrefcount(payloads[0]), sys.getrefcount(buffer)


# The results of `sys.getrefcount` for a payload and a buffer with one owner, where the buffer is also in a local
# variable. Users compare the counts inline, because a function would add references and double the time.
_PAYLOAD_OF_ONE, BUFFER_OF_ONE = _references_of_one_owner()


def whole_buffer(payload: np.ndarray) -> np.ndarray | None:
    """Returns the buffer of a payload if the buffer is whole, as the module's documentation defines; else `None`."""
    buffer: object = payload.base
    # A reversed or transposed view may have the same shape as its base, but its strides differ.
    if type(buffer) is not np.ndarray or buffer.shape != payload.shape or buffer.strides != payload.strides:
        return None
    if buffer.base is not None or buffer.dtype != payload.dtype:
        return None
    flags = buffer.flags
    return buffer if flags.owndata and flags.writeable else None


def take_buffer(payloads: list[object], index: int) -> np.ndarray | None:
    """Takes from a list of payloads an array that a leaf function returned, if nothing else references the array.

    Args:
      payloads: A list that only the caller reads. The payload of a taken array is replaced by `None`.
      index: The index of the payload.

    Returns:
      The array, to which the caller may write; `None` if the array may be shared.
    """
    payload = payloads[index]
    if type(payload) is not np.ndarray or payload.nbytes < _WORTH_TAKING or payload.flags.writeable:
        return None
    buffer = whole_buffer(payload)
    if buffer is None or weakref.getweakrefcount(buffer) or weakref.getweakrefcount(payload):
        return None
    del payload  # the local variable would count as a reference
    if sys.getrefcount(payloads[index]) != _PAYLOAD_OF_ONE or sys.getrefcount(buffer) != BUFFER_OF_ONE:
        return None
    payloads[index] = None
    return buffer


_at = cast("Callable[[object, int], object]", operator.getitem)

# Converts a payload, given also the argument of the call that returned it, to a payload that cannot change any more.
Snapshot = Callable[[object, object], object]


def snapshot_of(result: Type) -> Snapshot | None:
    """Returns a function that copies the arrays in payloads that may still change; `None` if no array can change.

    In sequences, the function copies arrays that exist already. Elements that are generated later are copied as soon
    as they exist.
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
        argument = argument if type(argument) is _Given else _Given(argument)
        changed: list[object] | None = None
        for index, make in members:
            member = _at(payload, index)
            made = make(member, argument)
            if made is not member:
                changed = changed or list(cast("tuple[object, ...]", payload))
                changed[index] = made
        return payload if changed is None else tuple(changed)

    return struct


class _Given:
    """The argument of a call. Its arrays are looked through once, although each member of a result asks for them."""

    __slots__ = ("_arrays", "argument")

    def __init__(self, argument: object) -> None:
        self.argument = argument
        self._arrays: set[int] | None = None

    def shows(self, array: np.ndarray) -> bool:
        """Returns whether the argument contains an array, or a view of it."""
        if self._arrays is None:
            self._arrays = {id(one) for found in _arrays_in(self.argument) for one in (found, found.base)}
        return id(array) in self._arrays


def _sequence_stays(payload: object, argument: object, element: Snapshot | None) -> object:
    argument = argument.argument if type(argument) is _Given else argument
    given = cast("tuple[object, ...]", argument) if isinstance(argument, tuple) else (argument,)
    if any(payload is member for member in given):
        return payload  # the payload belongs to the caller, and the function cannot write to it
    snapshot = cast("Callable[[Callable[[np.ndarray], object]], object] | None", getattr(payload, "snapshot", None))
    if snapshot is not None:
        return snapshot(lambda array: _stays(array, None))
    if element is None or not isinstance(payload, list):
        return payload
    members = cast("list[object]", payload)
    return [element(member, None) for member in members]


def _stays(payload: object, argument: object) -> object:
    if type(payload) is not np.ndarray:
        return payload
    base: object = payload.base
    if isinstance(base, np.ndarray):
        # The usual case comes first: a view of an array that only this view references.
        if base.base is None and sys.getrefcount(base) == BUFFER_OF_ONE:
            return payload
        if not base.flags.writeable:
            return payload
        given = argument if type(argument) is _Given else _Given(argument)
        if given.shows(payload) or given.shows(base):
            return payload  # the payload belongs to the caller, and the function cannot write to it
    # Payloads are read-only, but the memory that they show may be writable.
    elif base is None or type(base) is bytes:
        return payload
    return read_only(payload.copy())


def _arrays_in(payload: object) -> Iterator[np.ndarray]:
    if isinstance(payload, np.ndarray):
        yield payload
    elif type(payload) is tuple:
        for member in cast("tuple[object, ...]", payload):
            yield from _arrays_in(member)
