"""Measures payloads before they are written: how much work it will be, and how many bytes at least."""

from collections.abc import Iterable
from typing import cast

import numpy as np

from fedstack.computations.types.language import FederatedType, SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_sizes import count_leaves
from fedstack.computations.types.type_structure import fields_of, is_client_valued
from fedstack.computations.values.column_sequence import ColumnSequence, SequenceColumn
from fedstack.computations.values.columns import Column, ConstantColumn, ListColumn, RowsColumn, StructColumn

# About a microsecond each: writing one tensor, or copying so many bytes.
_BYTES_PER_STEP = 4096
_QUICK_STEPS = 1000


def is_quick(payload: object, type_spec: Type) -> bool:
    """Tells whether writing a payload takes about a millisecond at most, and runs no code of users."""
    return _left(payload, type_spec, _QUICK_STEPS) >= 0


def _left(payload: object, type_spec: Type, steps: int) -> int:
    """Returns how many of so many steps are left when a payload has been written; a negative number for none."""
    if isinstance(type_spec, TensorType):
        return steps - 1 - _bytes(payload) // _BYTES_PER_STEP
    if isinstance(type_spec, FederatedType):
        if is_client_valued(type_spec):
            return _left_of_column(payload, type_spec.member, steps)
        return _left(payload, type_spec.member, steps)
    if isinstance(type_spec, StructType):
        if count_leaves(type_spec) > steps:
            return -1
        for member, (_, member_type) in zip(cast("tuple[object, ...]", payload), fields_of(type_spec)):
            steps = _left(member, member_type, steps)
            if steps < 0:
                break
        return steps
    if isinstance(type_spec, SequenceType):
        if isinstance(payload, ColumnSequence):
            return _left_of_rows(payload.column, type_spec.element, steps)
        return -1  # it may be a stream, which user code makes
    return steps - 1


def _left_of_rows(column: Column, element: Type, steps: int) -> int:
    """Returns how many steps are left when the elements of sequences, or the rows of their batches, are written."""
    if isinstance(column, StructColumn) and isinstance(element, StructType):
        if count_leaves(element) > steps:
            return -1
        for field, (_, field_type) in zip(column.fields, fields_of(element)):
            steps = _left_of_rows(field, field_type, steps)
        return steps
    if isinstance(column, RowsColumn):
        return steps - 1 - column.values.nbytes // _BYTES_PER_STEP
    return _left_of_column(column, element, steps)


def _left_of_column(payload: object, member: Type, steps: int) -> int:
    if isinstance(payload, SequenceColumn) and isinstance(member, SequenceType):
        return _left_of_rows(payload.rows, member.element, steps - len(payload))
    if not isinstance(payload, Column) or not payload.is_here or len(payload) * count_leaves(member) > steps:
        return -1
    for item in payload.items():
        steps = _left(item, member, steps)
        if steps < 0:
            break
    return steps


def known_bytes(payload: object, type_spec: Type) -> int:
    """Returns how many bytes the arrays of a payload take when it is written, as often as each occurs.

    What members share is counted by its size and not by walking over it again. Elements of streams count nothing.
    """
    return _known_bytes(payload, type_spec, {})


def _known_bytes(payload: object, type_spec: Type, known: dict[tuple[int, int], int]) -> int:
    if isinstance(type_spec, FederatedType):
        return _known_bytes(payload, type_spec.member, known)
    if isinstance(payload, Column):
        return _bytes_of_column(payload, type_spec, known)
    if isinstance(type_spec, SequenceType):
        return _bytes_of_column(payload.column, type_spec.element, known) if isinstance(payload, ColumnSequence) else 0
    if not isinstance(type_spec, StructType):
        return _bytes(payload)
    key = id(payload), id(type_spec)
    found = known.get(key)
    if found is None:
        members = zip(cast("tuple[object, ...]", payload), fields_of(type_spec))
        found = known[key] = sum(_known_bytes(member, t, known) for member, (_, t) in members)
    return found


def _bytes_of_column(column: Column, member: Type, known: dict[tuple[int, int], int]) -> int:
    if isinstance(column, RowsColumn):
        return _bytes(column.values)
    if isinstance(column, SequenceColumn) and isinstance(member, SequenceType):
        return _bytes_of_column(column.rows, member.element, known)
    if isinstance(column, StructColumn) and isinstance(member, StructType):
        return sum(_bytes_of_column(c, t, known) for c, (_, t) in zip(column.fields, fields_of(member)))
    if isinstance(column, ConstantColumn):
        return len(column) * _known_bytes(column.value, member, known)
    if isinstance(column, ListColumn):
        return sum(_known_bytes(value, member, known) for value in column.values)
    return 0


def _bytes(payload: object) -> int:
    if isinstance(payload, np.ndarray):
        array = cast(np.ndarray, payload)
        if array.dtype != np.object_:
            return array.nbytes
        return array.size + sum(map(_bytes, cast("Iterable[object]", array.flat)))
    return len(payload) if isinstance(payload, bytes) else 8
