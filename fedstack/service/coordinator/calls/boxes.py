"""Makes one array of bytes of what a Python function returns, whose type nobody has said: the value with its type."""

import struct
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import TensorType, Type, infer_type
from fedstack.computations.types.type_checks import check_assignable
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.values import normalize
from fedstack.errors import TypeMismatchError
from fedstack.proto.extensions_pb2 import TypedValue
from fedstack.transport.wire.packing import Packer
from fedstack.transport.wire.segments import SegmentReader, joined
from fedstack.transport.wire.unpacking import MOST_RESULT_BYTES, Unpacker

BOX = TensorType(np.uint8, [None])
"""The type of a box at a worker."""
_LENGTH = struct.Struct("<Q")

Box = NDArray[np.uint8]


def box(value: object, name: str) -> Box:
    """Returns the box of a value; that of `None` is empty.

    Raises:
      TypeMismatchError: If the value has no type of the language.
    """
    if value is None:
        return np.empty(0, np.uint8)
    try:
        type_spec = cast(Type, infer_type(value))
        payload = normalize(value, type_spec, "result")
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeMismatchError(
            f"Expected a result of {name!r} with a type of the language (numbers, strings, NumPy arrays, and lists, "
            f"tuples and dictionaries of them), found {type(value).__name__}: {error}"
        ) from error
    packer, typed = Packer(elements=True, sequences=True), TypedValue()
    typed.type.CopyFrom(type_spec.to_proto())
    packer.pack(typed.value, payload, type_spec)
    header = typed.SerializeToString()
    return np.frombuffer(joined(packer.segments, _LENGTH.pack(len(header)), header), np.uint8)


def payload_in(boxed: Box) -> tuple[object, Type] | None:
    """Returns the payload in a box, and its type; `None` if `None` is in it."""
    if not boxed.size:
        return None
    view = np.ascontiguousarray(boxed).data
    (length,) = _LENGTH.unpack(view[: _LENGTH.size])
    start = _LENGTH.size + length
    typed = TypedValue.FromString(bytes(view[_LENGTH.size : start]))
    type_spec = type_from_proto(typed.type)
    unpacker = Unpacker(max_bytes=MOST_RESULT_BYTES, for_results=True)
    payload = unpacker.unpack(typed.value, type_spec, "result")
    reader = SegmentReader(unpacker.buffers)
    reader.feed(view[start:])
    reader.finish()
    unpacker.finish()
    return payload, type_spec


def unboxed(boxed: Box) -> Any:
    """Returns the value in a box."""
    found = payload_in(boxed)
    return None if found is None else to_result(*found)


def unboxed_as(boxed: Box, expected: Type) -> Any:
    """Returns the value in a box, which has to fit a type.

    Raises:
      TypeMismatchError: If it does not.
    """
    found = payload_in(boxed)
    if found is None:
        raise TypeMismatchError(f"Expected {expected}, found None")
    payload, type_spec = found
    check_assignable(expected, type_spec, "arg")
    return to_result(payload, type_spec)
