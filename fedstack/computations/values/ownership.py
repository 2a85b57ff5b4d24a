"""Determines whether an array has a single owner, and copies arrays that others may still write to.

CPython's reference counts show the owners, as long as it has its global lock. A payload array is a read-only view; the
array under it is its *buffer*. Four places ask who else can reach a buffer:

| user | question | the buffer | references to the buffer | references to the payload |
| --- | --- | --- | --- | --- |
| `snapshot_of` | may a result change after the function has returned it? | any | the payload | any |
| `take_buffer` | may a fold write into a result? | whole, large | the payload; no weak ones | one list |
| `containers.py` | may the user keep the result of a computation? | whole | the payload | any: it is not used again |
| `phase_results.py` | may a fold write into a received array? | whole | not counted: fresh memory | any |

A buffer is *whole* if the payload shows all of it, in its order and dtype, and if it has writable memory of its own
(`whole_buffer`). Memory of another object (a file, bytes, a tensor) may be visible through that object. Where
references cannot be counted, nothing has a single owner: arrays are copied.

A function may return a buffer that it fills again in its next call, and a result for one client must not become that of
the next. Most returned arrays have a single owner, and need no copy.
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

# Below this size allocating a buffer is cheaper than checking whether one can be taken.
_WORTH_TAKING = 16 * 1024


def _references_of_one_owner() -> tuple[int, int]:
    """Counts the references to a payload that only a list holds, and to the buffer that only the payload holds."""
    if not hasattr(sys, "getrefcount") or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0, 0
    payloads = [np.empty(1).view()]
    buffer = cast(np.ndarray, payloads[0].base)
    return sys.getrefcount(payloads[0]), sys.getrefcount(buffer)


# What `sys.getrefcount` returns for a buffer in a local variable that only its payload references. It is compared in
# place: a function for that would add references of its own, and take as long as all the rest.
_PAYLOAD_OF_ONE, BUFFER_OF_ONE = _references_of_one_owner()


def whole_buffer(payload: np.ndarray) -> np.ndarray | None:
    """Returns the array that a payload shows all of, if it has writable memory of its own; else `None`."""
    buffer: object = payload.base
    # A reversed or transposed view may have the shape of its base, but has other strides.
    if type(buffer) is not np.ndarray or buffer.shape != payload.shape or buffer.strides != payload.strides:
        return None
    if buffer.base is not None or buffer.dtype != payload.dtype:
        return None
    flags = buffer.flags
    return buffer if flags.owndata and flags.writeable else None


def take_buffer(payloads: list[object], index: int) -> np.ndarray | None:
    """Takes an array that a leaf function returned out of a list of payloads, if nothing else references it.

    Args:
      payloads: A list that is not read by others any more. A taken array is replaced by `None`.
      index: The index of the payload.

    Returns:
      The array, which the caller may keep and write to; `None` if it might be shared.
    """
    payload = payloads[index]
    if type(payload) is not np.ndarray or payload.nbytes < _WORTH_TAKING or payload.flags.writeable:
        return None
    buffer = whole_buffer(payload)
    if buffer is None or weakref.getweakrefcount(buffer) or weakref.getweakrefcount(payload):
        return None
    del payload  # a reference, too
    if sys.getrefcount(payloads[index]) != _PAYLOAD_OF_ONE or sys.getrefcount(buffer) != BUFFER_OF_ONE:
        return None
    payloads[index] = None
    return buffer


_at = cast("Callable[[object, int], object]", operator.getitem)

# From a payload and the argument of the call that made it to a payload that cannot change any more.
Snapshot = Callable[[object, object], object]


def snapshot_of(result: Type) -> Snapshot | None:
    """Returns the function that copies what may still change in payloads of a type; `None` if nothing can.

    Of sequences it copies existing arrays. Elements that a function makes are copied when they are made.
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
        return payload  # the caller's, which the function cannot fill
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
        # The usual case first: a view of an array that only this view has.
        if base.base is None and sys.getrefcount(base) == BUFFER_OF_ONE:
            return payload
        if not base.flags.writeable:
            return payload
        if any(array is payload or array is base or array.base is base for array in _arrays_in(argument)):
            return payload  # the caller's, which the function cannot fill
    # Payloads are read-only; what they are views of may not be.
    elif base is None or type(base) is bytes:
        return payload
    return read_only(payload.copy())


def _arrays_in(payload: object) -> Iterator[np.ndarray]:
    if isinstance(payload, np.ndarray):
        yield payload
    elif type(payload) is tuple:
        for member in cast("tuple[object, ...]", payload):
            yield from _arrays_in(member)
