"""Joins the rows of several sequences, so that they are sent as one array for each tensor of an element.

The message also contains the batching of the rows. Joining does not copy: rows in several arrays become a `Pieces`
column.
"""

import itertools
from collections.abc import Sequence
from typing import cast

import numpy as np

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_string
from fedstack.computations.values.column_sequence import ColumnSequence, SequenceColumn, column_of, row_type
from fedstack.computations.values.columns import Column, ListColumn, Payload, RowsColumn, StructColumn
from fedstack.computations.values.sequences import MAX_SEED_BYTES, Batching, check_one_order
from fedstack.computations.values.values import SequenceView
from fedstack.errors import InvalidValueError
from fedstack.proto.extensions_pb2 import Packed


class Pieces(Column):
    """A column of equally shaped rows that are stored in several consecutive arrays.

    Attributes:
      arrays: The arrays, each of shape [rows, ...]. There is at least one array.
    """

    __slots__ = ("arrays",)

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = arrays

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the concatenated arrays."""
        return (sum(map(len, self.arrays)), *self.arrays[0].shape[1:])

    def __len__(self) -> int:
        return sum(map(len, self.arrays))

    def items(self) -> Sequence[Payload]:
        return [row for array in self.arrays for row in array]

    def slice(self, start: int, stop: int) -> Column:
        return ListColumn(self.items()[start:stop])


def as_columns(sequence: Payload, element: Type, path: str) -> ColumnSequence:
    """Returns a sequence as a `ColumnSequence`.

    Raises:
      InvalidValueError: If only the elements of the sequence can be sent, and their order differs from pass to pass.
    """
    if isinstance(sequence, ColumnSequence):
        return sequence
    if isinstance(sequence, SequenceView) and (batches := sequence.as_rows()) is not None:
        return batches
    check_one_order(sequence, path)
    return column_of(cast("Sequence[object]", sequence), element)


def rows_at_clients(column: SequenceColumn, element: Type) -> SequenceColumn | None:
    """Returns `column` with its rows joined and without unused rows, or `None` if the shapes of the rows differ."""
    row = element if column.batchings is None else row_type(element)
    bounds = column.bounds
    rows = None if row is None else _joined([column.rows.slice(int(bounds[0]), int(bounds[-1]))], row)
    return None if rows is None else SequenceColumn(rows, bounds - bounds[0], column.batchings)


def together(sequences: Sequence[ColumnSequence], element: Type) -> SequenceColumn | None:
    """Returns sequences with all their rows in one column, or `None` if the shapes of the rows differ.

    If the elements of each sequence are arrays with the same first dimension, except for the last, they are treated as
    batches of rows.

    Args:
      sequences: At least one sequence.
      element: The type of the elements.
    """
    columns = [sequence.column for sequence in sequences]
    counts = list(map(len, columns))
    batchings = [sequence.batching for sequence in sequences if sequence.batching is not None]
    if not batchings:
        rows = _joined(columns, element)
        if rows is not None:
            return sequences_of(rows, counts)
        found = [batched for column in columns if (batched := _batched(column)) is not None]
        columns, batchings = [rows for rows, _ in found], [batching for _, batching in found]
        counts = list(map(len, columns))
    elif len(batchings) < len(sequences):
        # An empty sequence is compatible with any batching. Its column may not be a column of arrays, so it is omitted.
        one = batchings[0]
        columns = [sequence.column for sequence in sequences if sequence.batching is not None]
        batchings = [s.batching or one for s in sequences if s.batching is not None or not len(s.column)]
    row = row_type(element)
    if row is None or len(batchings) < len(sequences):
        return None
    rows = _joined(columns, row)
    return None if rows is None else sequences_of(rows, counts, batchings)


def sequences_of(rows: Column, counts: Sequence[int], batchings: Sequence[Batching] | None = None) -> SequenceColumn:
    """Returns consecutive sequences with the given numbers of rows."""
    return SequenceColumn(rows, np.array([0, *itertools.accumulate(counts)], np.int64), batchings)


def _joined(columns: Sequence[Column], member: Type) -> Column | None:
    """Returns the rows of all columns as one column, or `None` if the rows are arrays of different shapes."""
    filled = [column for column in columns if len(column)] or columns[:1]
    if isinstance(member, StructType) and all(isinstance(column, StructColumn) for column in filled):
        types = [t for _, t in fields_of(member)]
        fields = [_joined([column.field(index) for column in filled], t) for index, t in enumerate(types)]
        return None if None in fields else StructColumn(tuple(cast("list[Column]", fields)), sum(map(len, filled)))
    if len(filled) == 1 and not isinstance(filled[0], ListColumn):
        return filled[0]
    if any(isinstance(column, (RowsColumn, Pieces)) for column in filled):
        arrays = [array for column in filled for array in _arrays_of(column)]
        return Pieces(arrays) if len({array.shape[1:] for array in arrays}) == 1 else None
    items = [item for column in filled for item in column.items()]
    if not _are_arrays(items) or (isinstance(member, TensorType) and is_string(member)):
        return ListColumn(items)
    shapes = {cast(np.ndarray, item).shape for item in items}
    return ListColumn(items) if len(shapes) < 2 else None


def _arrays_of(column: Column) -> Sequence[np.ndarray]:
    """Returns the rows of a column of tensors as arrays of shape [rows, ...]."""
    if isinstance(column, Pieces):
        return column.arrays
    if isinstance(column, RowsColumn):
        return [column.values]
    return [np.asarray(cast(np.ndarray, item))[None] for item in column.items()]


def _batched(column: Column) -> tuple[Column, Batching] | None:
    """Returns the rows of elements that are batches, and their batching, or `None` if the elements are not batches.

    Elements are batches if they are arrays of equal size, except for the last, which may be smaller.
    """
    if not len(column):
        return column, Batching(1)
    if isinstance(column, StructColumn):
        found = [_batched(field) for field in column.fields]
        fields = [field for field in found if field is not None]
        if len({(len(rows), batching) for rows, batching in fields}) != 1 or len(fields) < len(found):
            return None
        rows, batching = fields[0]
        return StructColumn(tuple(field for field, _ in fields), len(rows)), batching
    if isinstance(column, RowsColumn) and column.values.ndim > 1 and len(column.values[0]):
        values = column.values
        return RowsColumn(values.reshape(-1, *values.shape[2:])), Batching(values.shape[1])
    items = column.items()
    if not _are_arrays(items):
        return None
    arrays = cast("Sequence[np.ndarray]", items)
    if not all(array.ndim and len(array) for array in arrays):
        return None
    size, tail = len(arrays[0]), arrays[0].shape[1:]
    if any(array.shape[1:] != tail for array in arrays) or any(len(array) != size for array in arrays[:-1]):
        return None
    return (Pieces(arrays), Batching(size)) if len(arrays[-1]) <= size else None


def _are_arrays(items: Sequence[object]) -> bool:
    return all(isinstance(item, np.ndarray) for item in items)


def write_batchings(message: Packed.Sequences | Packed.References, batchings: Sequence[Batching]) -> None:
    """Writes the batchings of sequences. If all batchings are equal, writes only one."""
    for batching in batchings[:1] if len(set(batchings)) == 1 else batchings:
        one = message.batching.add(size=batching.size, drop_remainder=batching.drop_remainder)
        if batching.seed is not None:
            one.seed = batching.seed.to_bytes((batching.seed.bit_length() + 7) // 8, "big")
            one.round, one.reshuffles = batching.round, batching.reshuffles


def read_batchings(messages: Sequence[Packed.Batching], count: int, what: str, path: str) -> Sequence[Batching] | None:
    """Returns the batching of each of `count` sequences, or `None` if the rows themselves are the elements.

    Args:
      messages: The batchings in the message: none, one for all sequences, or one for each.
      count: The number of sequences.
      what: The plural noun for the sequences, for error messages.
      path: The path of the value, for error messages.

    Raises:
      InvalidValueError: If the number of batchings, a batch size or a seed is invalid.
    """
    if not messages:
        return None
    if len(messages) not in (1, count):
        raise InvalidValueError(
            f"Expected one batching, or one for each of {count} {what}, at {path}, found {len(messages)} batchings; "
            "send one batching for each, or only one if all are equal"
        )
    batchings: list[Batching] = []
    for one in messages:
        if one.size < 1 or len(one.seed) > MAX_SEED_BYTES:
            raise InvalidValueError(
                f"Expected batches of at least one row and a seed of at most {MAX_SEED_BYTES} bytes at {path}, found "
                f"batches of {one.size} rows and a seed of {len(one.seed)} bytes; send values in these ranges"
            )
        seed = int.from_bytes(one.seed, "big") if one.HasField("seed") else None
        reshuffles = seed is not None and one.reshuffles
        batchings.append(Batching(one.size, one.drop_remainder, seed, one.round, reshuffles))
    return batchings * count if len(batchings) == 1 else batchings
