"""Makes one array of bytes of what a Python function returns, whose type nobody has said: the value with its type."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.packing import Packer, check_count
from fedstack.computations.codec.segments import SegmentReader, joined
from fedstack.computations.codec.unpacking import MOST_RESULT_BYTES, Unpacker
from fedstack.computations.types.language import StructType, TensorType, Type, computation_pb2, infer_type
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import fields_of, type_from_proto
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.tensor_values import describe
from fedstack.computations.values.values import normalize
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.executors.concurrency.off_loop import parsed
from fedstack.proto.extensions_pb2 import TypedValue
from fedstack.service.coordinator.calls.structures import leaves_of, replaced

BOX = TensorType(np.uint8, [None])
"""The type of a box at a worker."""
_LENGTHS = struct.Struct("<QQ")
_WHERE_A_NUMBER_IS = np.bool_(False)

Box = NDArray[np.uint8]


def box(value: object, name: str) -> Box:
    """Returns the box of a value; that of `None` is empty.

    Python's own numbers have 64 bits in it, and are Python's own again when they come out.

    Raises:
      TypeMismatchError: If the value has no type of the language.
    """
    if value is None:
        return np.empty(0, np.uint8)
    try:
        array_like = replaced(value, _with_64_bits)
        type_spec = cast(Type, infer_type(array_like))
        payload = normalize(array_like, type_spec, "result")
    except (TypeError, ValueError, NotImplementedError) as error:
        path, part = _misfit(value)
        raise TypeMismatchError(
            f"Expected a result of {name!r} with a type of the language (numbers up to 64 bits, strings, NumPy arrays, "
            f"and lists, tuples and dictionaries of them), found {describe(part)}; at {path}; {_advice_on(part)}"
        ) from error
    packer, typed = Packer(), TypedValue()
    typed.type.CopyFrom(type_spec.to_proto())
    packer.pack(typed.value, payload, type_spec)
    header, numbers = typed.SerializeToString(), b""
    if array_like is not value:
        marked = cast(Type, infer_type(replaced(value, lambda part: _WHERE_A_NUMBER_IS if _is_number(part) else part)))
        numbers = marked.to_proto().SerializeToString()
    lengths = _LENGTHS.pack(len(header), len(numbers))
    return np.frombuffer(joined(packer.segments, lengths, header, numbers), np.uint8)


def _is_number(part: object) -> bool:
    return type(part) in (int, float)


def _with_64_bits(part: object) -> object:
    if type(part) is int and not -(2**63) <= part < 2**63:
        raise ValueError("more than 64 bits")
    return np.int64(part) if type(part) is int else np.float64(part) if type(part) is float else part


def _misfit(value: object) -> tuple[str, object]:
    """Returns the first part of a value that has no type, and the path to it; the value itself if all have."""
    for path, part in leaves_of(value, "result", lambda part: not is_dataclass(part)):  # the language knows none
        try:
            if infer_type(_with_64_bits(part)) is None:
                return path, part
        except (TypeError, ValueError, NotImplementedError):
            return path, part
    return "result", value


def _advice_on(part: object) -> str:
    if part is None:
        return "only a whole result may be None: leave it out, or return NaN"
    if type(part) is int:
        return "Python's own numbers go as int64 and float64; give larger ones as floats or text"
    if isinstance(part, (Mapping, list, tuple)):  # whose members all have types
        return "give text as the keys of dictionaries"
    if isinstance(part, Iterable):
        return "give a list of its elements"
    return "give numbers, text or arrays of what is in it"


def payload_in(boxed: Box) -> tuple[object, Type] | None:
    """Returns the payload in a box, with Python's own numbers as such, and its type; `None` if `None` is in it."""
    if not boxed.size:
        return None
    view = np.ascontiguousarray(boxed).data
    if len(view) < _LENGTHS.size:
        raise InvalidValueError(f"Expected a value in a box, found {len(view)} bytes that are none")
    header, numbers = _LENGTHS.unpack(view[: _LENGTHS.size])
    typed = parsed(TypedValue, bytes(view[_LENGTHS.size : (start := _LENGTHS.size + header)]))
    type_spec = type_from_proto(typed.type)
    unpacker = Unpacker(max_bytes=MOST_RESULT_BYTES, for_results=True)
    payload = unpacker.unpack(typed.value, type_spec, "result")
    reader = SegmentReader(unpacker.buffers)
    reader.feed(view[start + numbers :])
    reader.finish()
    unpacker.finish()
    if numbers:
        marked = type_from_proto(parsed(computation_pb2.Type, bytes(view[start : start + numbers])))
        payload = _with_numbers(payload, type_spec, marked)
    return payload, type_spec


def _with_numbers(payload: object, type_spec: Type, marked: Type) -> object:
    """Returns a payload with Python's own numbers where they were."""
    if isinstance(type_spec, StructType):
        marks = fields_of(marked) if isinstance(marked, StructType) else ()
        check_count(len(marks), len(fields_of(type_spec)), type_spec, "result")
        members = zip(cast("tuple[object, ...]", payload), fields_of(type_spec), marks)
        return tuple(_with_numbers(member, found, mark) for member, (_, found), (_, mark) in members)
    if marked == type_spec:
        return payload
    if not isinstance(payload, np.generic):
        raise InvalidValueError(f"Expected a number of Python's in a box, found one of type {type_text(type_spec)}")
    return cast("np.generic", payload).item()


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
    value = to_result(*found)
    normalize(value, expected, "arg")
    return value
