"""Packs the result of a Python function into a box: one array of bytes with the value and its inferred type.

A box contains a typed value as one message (`typed_values.py`, `parcels.py`). After the bytes of the value, it contains
the indices of the tensors that are plain Python numbers. The box of `None`, which has no type, is empty.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.packing import Packer, write_typed
from fedstack.computations.codec.unpacking import Unpacker, read_typed
from fedstack.computations.types.language import TensorType, Type, infer_type
from fedstack.computations.types.type_structure import flatten, tensor_leaves, unflatten
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.values import normalize
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.executors.concurrency.leaf_threads import parsed
from fedstack.foundations.segments import SegmentReader
from fedstack.foundations.value_text import describe
from fedstack.proto.extensions_pb2 import TypedValue
from fedstack.service.coordinator.calls.structures import leaves_of, replaced
from fedstack.transport.wire.parcels import Parcel, read_whole, write_whole

_INDEX = np.dtype("<i8")
BOX = TensorType(np.uint8, [None])
"""The type of a box on a worker."""
_WHERE_A_NUMBER_IS = np.bool_(False)

Box = NDArray[np.uint8]


def box(value: object, name: str) -> Box:
    """Packs a value into a box. The box of `None` is empty.

    Python numbers are stored with 64 bits and restored as Python numbers when the box is opened.

    Args:
      value: The value.
      name: The name of the function that returned the value, for the error message.

    Raises:
      TypeMismatchError: If the language has no type for the value.
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
            f"Expected {name!r} to return a value with a type of the language (numbers of up to 64 bits, strings, "
            f"NumPy arrays, and lists, tuples and dictionaries of these), found {describe(part)} at {path}; "
            f"{_advice_on(part)}"
        ) from error
    packer = Packer()
    typed = write_typed(payload, type_spec, packer)
    segments = packer.segments
    if array_like is not value:
        segments.append(np.array(_numbers_in(value, type_spec), _INDEX).view(np.uint8).data)
    return np.frombuffer(write_whole(Parcel(typed.SerializeToString(), segments)), np.uint8)


def _numbers_in(value: object, type_spec: Type) -> list[int]:
    """Returns the indices of the tensors in a value that are Python numbers."""
    if _is_number(value):
        return [0]
    marked = cast(Type, infer_type(replaced(value, lambda part: _WHERE_A_NUMBER_IS if _is_number(part) else part)))
    pairs = enumerate(zip(tensor_leaves(marked), tensor_leaves(type_spec)))
    return [index for index, ((_, mark), (_, found)) in pairs if mark.dtype != found.dtype]


def _is_number(part: object) -> bool:
    return type(part) in (int, float)


def _with_64_bits(part: object) -> object:
    if type(part) is int and not -(2**63) <= part < 2**63:
        raise ValueError("The integer needs more than 64 bits")
    return np.int64(part) if type(part) is int else np.float64(part) if type(part) is float else part


def _misfit(value: object) -> tuple[str, object]:
    """Returns the path to the first part without a type within a value, and the part itself.

    Returns the whole value if all parts have types.
    """
    for path, part in leaves_of(value, "result", lambda part: not is_dataclass(part)):  # dataclasses have no type
        try:
            if infer_type(_with_64_bits(part)) is None:
                return path, part
        except (TypeError, ValueError, NotImplementedError):
            return path, part
    return "result", value


def _advice_on(part: object) -> str:
    if part is None:
        return "return None only as the whole result; omit this part, or use NaN instead"
    if type(part) is int:
        return "return larger integers as floats or strings, since Python integers are sent as int64"
    if isinstance(part, (Mapping, list, tuple)):  # all members have types
        return "use strings as dictionary keys"
    if isinstance(part, Iterable):
        return "return a list of the elements"
    return "return the object's content as numbers, strings or arrays"


def payload_in(boxed: Box) -> tuple[object, Type] | None:
    """Returns a box's payload and the payload's type; `None` if the box contains `None`. Restores Python numbers."""
    if not boxed.size:
        return None
    parcel = read_whole(np.ascontiguousarray(boxed).data)
    if not isinstance(parcel, Parcel):
        raise InvalidValueError(f"Expected a boxed value, found {boxed.size} bytes in another format")
    unpacker = Unpacker(for_results=True)
    payload, type_spec = read_typed(parsed(TypedValue, parcel.header), unpacker, path="result")
    data = cast(memoryview, parcel.segments[0]) if parcel.segments else memoryview(b"")
    reader = SegmentReader(unpacker.buffers)
    reader.feed(data[: reader.expected])
    reader.finish()
    unpacker.finish()
    rest = data[reader.expected :]
    if len(rest) % _INDEX.itemsize:
        raise InvalidValueError(
            f"Expected a multiple of 8 bytes for the indices at the end of a box, found {len(rest)} bytes"
        )
    return _with_numbers(payload, type_spec, np.frombuffer(rest, _INDEX).tolist()) if rest else payload, type_spec


def _with_numbers(payload: object, type_spec: Type, numbers: Sequence[int]) -> object:
    """Returns a payload in which the tensors with the given indices are replaced by Python numbers."""
    leaves = flatten(payload, type_spec)
    for index in numbers:
        found = leaves[index] if 0 <= index < len(leaves) else None
        if not isinstance(found, np.generic):
            raise InvalidValueError(
                f"Expected tensor {index} of a box to be a scalar, found an array or no such tensor"
            )
        leaves[index] = found.item()
    return unflatten(iter(leaves), type_spec)


def unboxed(boxed: Box) -> Any:
    """Returns the value in a box."""
    found = payload_in(boxed)
    return None if found is None else to_result(*found)


def unboxed_as(boxed: Box, expected: Type) -> Any:
    """Returns the value in a box, and checks the value's type.

    Raises:
      TypeMismatchError: If the value does not have the type `expected`.
    """
    found = payload_in(boxed)
    if found is None:
        raise TypeMismatchError(f"Expected {expected}, found None; return a value from the scheduled function")
    value = to_result(*found)
    normalize(value, expected, "arg")
    return value
