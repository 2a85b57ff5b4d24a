"""Stores the elements of sequences as columns, which are a few arrays instead of one object per element.

| class | elements |
| --- | --- |
| `ColumnSequence` | the elements of a column or, with a `Batching`, batches of the column's rows |
| `BlockSequence` | the elements of several columns, which are created one after another |
| `SequenceColumn` | one sequence per client, from one column with the rows of all clients |
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast, overload

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, struct_of, tensor_leaves
from fedstack.computations.values.columns import (
    Column,
    ListColumn,
    Payload,
    RowsColumn,
    StructColumn,
    column_from_payloads,
    concatenate,
)
from fedstack.computations.values.sequences import AHEAD, Batching, HasPasses, reshuffles, take
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import counted

# The number of elements that are created at a time. It is limited so that memory does not grow with the sequence.
_AT_ONCE = 1024
# The number of elements that are packed into a column at a time. It is limited so that memory never contains all
# elements twice.
PACKED_AT_ONCE = 1 << 13
# The size in bytes of the batches that are copied at a time. They fit into the processor's cache, and a reference to
# one batch keeps no more than this amount of memory alive.
_COPIED_BYTES = 64 << 10
# A view of an array takes more memory than an array of this size.
_SMALL_BYTES = 512


class ColumnSequence(HasPasses, Sequence[object]):
    """A sequence whose payloads are created from a column on each access.

    Attributes:
      batching: The rule by which rows form batches; `None` if each row is an element.

    Args:
      column: The elements or, with a `batching`, the rows of the batches. The rows of batches must be arrays.
      batching: See above.
      start: The index of the first row of the sequence.
      stop: The index after the last row; by default the end of the column.
    """

    __slots__ = ("_column", "_start", "_stop", "batching")

    def __init__(self, column: Column, batching: Batching | None = None, start: int = 0, stop: int = -1) -> None:
        self._column = column
        self._start = start
        self._stop = len(column) if stop < 0 else stop
        self.batching = batching

    @property
    def column(self) -> Column:
        """The column of the elements, or of the rows of the batches."""
        whole = (self._start, self._stop) == (0, len(self._column))
        return self._column if whole else self._column.slice(self._start, self._stop)

    def __len__(self) -> int:
        rows = self._stop - self._start
        return rows if self.batching is None else self.batching.count(rows)

    @property
    def reshuffles(self) -> bool:
        return self.batching is not None and self.batching.reshuffles

    def __iter__(self) -> Iterator[object]:
        return self.in_pass(0)

    def in_pass(self, number: int) -> Iterator[object]:
        if self.batching is None and self._stop - self._start <= _AT_ONCE:
            return iter(_items(self._column, self._start, self._stop))
        return itertools.chain.from_iterable(self.lists(number))

    def lists(self, number: int = 0) -> Iterator[Sequence[object]]:
        """Yields lists of consecutive elements of a pass. Lists of batches that must be copied contain a few KB each.

        Creating several views in a row is faster than creating one between two steps of a training loop, because the
        code stays in the processor's cache.
        """
        if self.batching is None:
            column, stop = self._column, self._stop
            return (_items(column, first, min(first + _AT_ONCE, stop)) for first in range(self._start, stop, _AT_ONCE))
        return _batches(self.column, self.batching, number)

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[object]: ...
    def __getitem__(self, index: int | slice) -> object:
        places = range(len(self))[index]
        if isinstance(places, int):
            if self.batching is None:
                return _items(self._column, self._start + places, self._start + places + 1)[0]
            size, order = self.batching.size, self.batching.order(len(self.column), 0)
            rows = slice(places * size, min(places * size + size, len(self.column)))
            return next(_cut(self.column, rows if order is None else order[rows], 1, rows.stop - rows.start))
        if self.batching is not None:
            return list(self)[index]
        if places.step == 1:
            start = self._start + places.start
            return ColumnSequence(self._column, None, start, max(start, self._start + places.stop))
        return [self[place] for place in places]

    def snapshot(self, keep: Callable[[np.ndarray], np.ndarray]) -> "ColumnSequence":
        """Returns a copy of the sequence in which `keep` has replaced each array by an array that will not change."""
        return ColumnSequence(_kept(self.column, keep), self.batching)

    def __repr__(self) -> str:
        return f"<ColumnSequence of {counted(len(self), 'element')}>"


def _items(column: Column, start: int, stop: int) -> Sequence[Payload]:
    """Returns the payloads in a column's rows from `start` to `stop` (exclusive)."""
    if isinstance(column, RowsColumn):
        return list(column.values[start:stop])
    if isinstance(column, StructColumn) and column.fields:
        return list(zip(*[_items(field, start, stop) for field in column.fields]))
    return column.slice(start, stop).items()


def _batches(column: Column, batching: Batching, number: int) -> Iterator[Sequence[Payload]]:
    """Yields lists of consecutive batches of a pass."""
    rows, size, order = len(column), batching.size, batching.order(len(column), number)
    whole = rows // size
    if order is None:
        views = _cut(column, slice(0, whole * size), whole, size)
        while some := list(itertools.islice(views, AHEAD)):
            yield some
    else:
        ahead = min(AHEAD, max(1, _COPIED_BYTES // max(1, size * _row_bytes(column))))
        for first in range(0, whole, ahead):
            last = min(first + ahead, whole)
            yield list(_cut(column, order[first * size : last * size], last - first, size))
    if batching.count(rows) > whole:
        rest = slice(whole * size, rows)
        yield list(_cut(column, rest if order is None else order[rest], 1, rows - whole * size))


def _cut(column: Column, rows: "slice | NDArray[np.intp]", count: int, size: int) -> Iterator[Payload]:
    """Iterates over `count` batches of `size` rows, which are views of the column or of one copy of the rows.

    Iterating over an array with an additional dimension takes half as long as slicing.
    """
    if isinstance(column, StructColumn):
        fields = [_cut(field, rows, count, size) for field in column.fields]
        return zip(*fields) if fields else itertools.repeat((), count)
    values = cast(RowsColumn, column).values
    return iter(take(values, rows).reshape(count, size, *values.shape[1:]))


def _row_bytes(column: Column) -> int:
    if isinstance(column, StructColumn):
        return sum(map(_row_bytes, column.fields))
    return cast(RowsColumn, column).values.nbytes // max(1, len(column))


def _kept(column: Column, keep: Callable[[np.ndarray], np.ndarray]) -> Column:
    if isinstance(column, StructColumn):
        return StructColumn(tuple([_kept(field, keep) for field in column.fields]), column.size)
    if isinstance(column, RowsColumn):
        return type(column)(keep(column.values))
    if isinstance(column, ListColumn):
        return ListColumn(
            [keep(cast(np.ndarray, value)) if isinstance(value, np.ndarray) else value for value in column.values]
        )
    return column


class HasBlocks:
    """A sequence that provides its elements in columns of a known type, so that elements need no individual checks."""

    __slots__ = ()

    @property
    def element_type(self) -> Type:
        """The type of the elements."""
        raise NotImplementedError

    @property
    def held(self) -> Column | None:
        """The column of all elements if they are already in memory; otherwise `None`."""
        return None

    @property
    def is_endless(self) -> bool:
        """Whether the sequence never ends."""
        return False

    def blocks(self) -> Iterator[Column]:
        """Yields the elements in columns. Each call starts a new iteration."""
        raise NotImplementedError

    def large_blocks(self) -> Iterator[Column]:
        """Does the same as `blocks`, but with larger columns if no copy is needed. For callers that read everything."""
        return self.blocks()

    def __len__(self) -> int:
        raise NotImplementedError


class BlockSequence:
    """The payload of a `HasBlocks`. Its elements are created during each iteration."""

    __slots__ = ("source",)

    def __init__(self, source: HasBlocks) -> None:
        self.source = source

    def __iter__(self) -> Iterator[object]:
        return itertools.chain.from_iterable(self.lists())

    def lists(self) -> Iterator[Sequence[object]]:
        """Yields lists of consecutive elements."""
        return lists_of(self.source.blocks())

    def held(self, element: Type) -> ColumnSequence:
        """Reads all elements into memory and returns them.

        Args:
          element: The type of the elements.

        Raises:
          InvalidValueError: If the sequence is endless.
        """
        if self.source.is_endless:
            raise InvalidValueError(
                f"Expected a finite sequence, since all elements are read into memory, found the endless "
                f"{self.source!r}; limit it with take(n)"
            )
        blocks = [_as_rows(block) for block in self.source.large_blocks()]
        return ColumnSequence(concatenate(blocks, element) if blocks else _as_rows(column_from_payloads([], element)))

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"<BlockSequence of {self.source!r}>"


def lists_of(blocks: Iterator[Column]) -> Iterator[Sequence[object]]:
    """Yields the elements of each column as a list."""
    for block in blocks:
        yield _items(block, 0, len(block))


class ShownSequence(HasPasses):
    """The base class of sequences that are passed to leaf functions. A function may return such a sequence.

    Attributes:
      payload: The payload.
      element: The type of the elements.
    """

    __slots__ = ("element", "payload")

    def __init__(self, payload: Iterable[object], element: Type) -> None:
        self.payload = payload
        self.element = element

    @property
    def reshuffles(self) -> bool:
        return reshuffles(self.payload)


class SequenceColumn(Column):
    """A column of sequences. Each client's sequence consists of consecutive rows of another column.

    Attributes:
      rows: The rows of all clients, one client after another.
      bounds: The index of the first row of each client, followed by the total number of rows; shape [clients + 1].
      batchings: The rules by which the rows of each client form batches; `None` if each row is an element.
    """

    __slots__ = ("batchings", "bounds", "rows")

    def __init__(self, rows: Column, bounds: NDArray[np.int64], batchings: Sequence[Batching] | None = None) -> None:
        self.rows = rows
        self.bounds = bounds
        self.batchings = batchings

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def items(self) -> Sequence[Payload]:
        rows, bounds = self.rows, self.bounds.tolist()
        batchings = itertools.repeat(None) if self.batchings is None else self.batchings
        return [ColumnSequence(rows, *some) for some in zip(batchings, bounds, bounds[1:])]

    def slice(self, start: int, stop: int) -> Column:
        batchings = None if self.batchings is None else self.batchings[start:stop]
        return SequenceColumn(self.rows, self.bounds[start : stop + 1], batchings)


def row_type(element: Type) -> Type | None:
    """Returns the type of the rows in a batch, or `None` if a member of the batch has no rows, such as a scalar."""
    if isinstance(element, TensorType):
        if element.shape is None:
            return element
        return TensorType(element.dtype, element.shape[1:]) if element.shape else None
    if not isinstance(element, StructType):
        return None
    members = [(name, member) for name, t in fields_of(element) if (member := row_type(t)) is not None]
    return struct_of(members) if len(members) == len(fields_of(element)) else None


def first_sizes(element: Type) -> set[int]:
    """Returns the known first dimensions of the tensors in a type."""
    shapes = [tensor.shape for _, tensor in tensor_leaves(element)]
    return {shape[0] for shape in shapes if shape and shape[0] is not None}


def packed_elements(
    elements: Iterable[object], element: Type, pack: Callable[[Sequence[object], int], Column]
) -> Column:
    """Returns a column of the elements of a sequence, which are packed a limited number at a time.

    Args:
      elements: The elements.
      element: The type of the elements.
      pack: Packs a list of consecutive elements into a column. Its second argument is the index of the first element.
    """
    rest, first = iter(elements), 0
    columns: list[Column] = []
    while some := list(itertools.islice(rest, PACKED_AT_ONCE)):
        columns.append(_as_rows(pack(some, first)))
        first += len(some)
    return concatenate(columns, element) if columns else _as_rows(pack([], 0))


def column_of(sequence: Iterable[object], element: Type) -> ColumnSequence:
    """Converts a sequence of payloads to a sequence over columns. This reads all elements of a stream."""
    if isinstance(sequence, ColumnSequence):
        return sequence
    if isinstance(sequence, BlockSequence):
        return sequence.held(element)
    return ColumnSequence(packed_elements(sequence, element, lambda some, _: column_from_payloads(some, element)))


def rows_of(arrays: Sequence[object]) -> RowsColumn | None:
    """Joins small arrays of the same shape into a single array. Returns `None` for other values."""
    shape = _shape_of(arrays)
    if shape is None:
        return None
    rows = np.concatenate(cast("Sequence[np.ndarray]", arrays)).reshape(len(arrays), *shape)
    rows.flags.writeable = False
    return RowsColumn(rows)


def _as_rows(column: Column) -> Column:
    """Returns a column in which small arrays of the same shape are joined into a single array."""
    if isinstance(column, StructColumn):
        return StructColumn(tuple(map(_as_rows, column.fields)), column.size)
    rows = rows_of(column.values) if isinstance(column, ListColumn) else None
    return column if rows is None else rows


def _shape_of(values: Sequence[object]) -> tuple[int, ...] | None:
    """Returns the common shape of small arrays of numbers; `None` for other values."""
    first = cast(np.ndarray, values[0]) if len(values) and isinstance(values[0], np.ndarray) else None
    if first is None or not first.ndim or not 0 < first.nbytes <= _SMALL_BYTES or first.dtype == np.object_:
        return None
    shape, dtype = first.shape, first.dtype
    if set(map(type, values)) != {np.ndarray}:
        return None
    arrays = cast("Sequence[np.ndarray]", values)
    return shape if all(array.shape == shape and array.dtype == dtype for array in arrays) else None
