"""Estimates how much work a message takes and how many bytes it contains, before it is written or received."""

import math
from collections.abc import Iterable
from itertools import repeat
from types import MappingProxyType
from typing import cast

import numpy as np

from fedstack.computations.codec.arrays import dtype_of_number
from fedstack.computations.types.language import FederatedType, SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.column_sequence import ColumnSequence, SequenceColumn
from fedstack.computations.values.columns import Column, ConstantColumn, RowsColumn, StructColumn
from fedstack.proto.extensions_pb2 import Packed

# Writing a tensor takes about a microsecond, which is the time that copying this number of bytes takes.
_BYTES_OF_TENSOR = 4096
_QUICK_BYTES = 1000 * _BYTES_OF_TENSOR


def is_quick(payload: object, type_spec: Type) -> bool:
    """Returns whether writing a payload takes at most about a millisecond and does not run users' code."""
    if isinstance(type_spec, TensorType):  # a shortcut that takes half the time
        return _bytes(payload) < _QUICK_BYTES
    return _Sizes(_BYTES_OF_TENSOR, math.inf, _QUICK_BYTES).of(payload, type_spec) <= _QUICK_BYTES


def known_bytes(payload: object, type_spec: Type) -> int:
    """Returns the number of bytes that a payload's arrays take up in a message.

    An array that occurs several times is counted each time, but a struct that occurs several times is measured only
    once. Elements of streams count as 0.
    """
    return int(_Sizes(0, 0, math.inf).of(payload, type_spec))


class _Sizes:
    """Adds up the sizes of the parts of payloads.

    Args:
      each: The size to count for each tensor, in addition to its bytes.
      unknown: The size to count for parts that are produced only when they are read: streams and deferred values.
      most: The total above which the counting stops.
    """

    __slots__ = ("_each", "_known", "_most", "_unknown")

    def __init__(self, each: int, unknown: float, most: float) -> None:
        self._each = each
        self._unknown = unknown
        self._most = most
        # Sizes by the identities of payload and type. The payload is kept, so that its identity stays valid.
        self._known: dict[tuple[int, int], tuple[float, object]] = {}

    def of(self, payload: object, type_spec: Type) -> float:
        """Returns the size of a payload."""
        if isinstance(type_spec, TensorType):
            return self._each + _bytes(payload)
        if isinstance(payload, Column):
            return self._of_column(payload, cast(FederatedType, type_spec).member, len(payload))
        if isinstance(type_spec, SequenceType):
            is_here = isinstance(payload, ColumnSequence)
            return self._of_column(payload.column, type_spec.element, 1) if is_here else self._unknown
        if isinstance(type_spec, FederatedType):
            return self.of(payload, type_spec.member)
        if not isinstance(type_spec, StructType):
            return self._each
        key = id(payload), id(type_spec)
        found = self._known.get(key)
        if found is None:
            types = [t for _, t in fields_of(type_spec)]
            size = self._sum(map(self.of, cast("tuple[object, ...]", payload), types)) or self._each
            found = self._known[key] = size, payload
        return found[0]

    def _of_column(self, column: Column, member: Type, written: int) -> float:
        """Returns the size of a column in which each array is written as `written` tensors."""
        if isinstance(column, RowsColumn):
            return self._each * written + _bytes(column.values)
        if isinstance(column, StructColumn):
            types = [t for _, t in fields_of(cast(StructType, member))]
            return self._sum(map(self._of_column, column.fields, types, repeat(written))) or self._each * written
        if isinstance(column, SequenceColumn):
            return self._each * len(column) + self._of_column(column.rows, cast(SequenceType, member).element, 1)
        if isinstance(column, ConstantColumn):
            return len(column) * self.of(column.value, member)
        return self._sum(map(self.of, column.items(), repeat(member))) if column.is_here else self._unknown

    def _sum(self, sizes: Iterable[float]) -> float:
        total: float = 0
        for size in sizes:
            total += size
            if total > self._most:
                break
        return total


def _bytes(payload: object) -> int:
    if isinstance(payload, np.ndarray):
        array = cast(np.ndarray, payload)
        if array.dtype != np.object_:
            return array.nbytes
        return array.size + sum(map(_bytes, cast("Iterable[object]", array.flat)))
    return len(payload) if isinstance(payload, bytes) else 8


# For each kind of message, the name of the field that contains the members.
_MEMBERS = MappingProxyType(
    {"struct": "member", "clients": "member", "same": "member", "fields": "column", "sequences": "row"}
)


def announced_bytes(packed: Packed) -> int:
    """Returns the number of segment bytes that a message announces. In a malformed message, the number may be wrong."""
    kind = packed.WhichOneof("kind") or ""
    if kind in ("raw", "rows"):
        raw: Packed.Raw = getattr(packed, kind)
        dtype = dtype_of_number(raw.dtype)
        return 0 if dtype is None else max(0, math.prod(raw.dim)) * dtype.itemsize
    found = getattr(getattr(packed, kind), _MEMBERS[kind]) if kind in _MEMBERS else ()
    return announced_bytes(found) if isinstance(found, Packed) else sum(map(announced_bytes, found))
