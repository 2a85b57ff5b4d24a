"""Reads sequences as columns of consecutive elements, for operations that process many elements in one call."""

import abc
import itertools
from collections.abc import Iterable, Iterator
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import Type
from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import Column, RowsColumn, StructColumn, column_from_payloads
from fedstack.computations.values.sequences import HasPasses, in_pass, take


class HasColumns(HasPasses):
    """A sequence that computes its elements in columns."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def is_held(self) -> bool:
        """Whether elements can be read in advance without effects, since they are in memory or follow from such."""

    @abc.abstractmethod
    def columns(self, number: int, most: int, first: int) -> Iterator[Column]:
        """Yields the elements; see `element_columns`."""


def is_held(sequence: object) -> bool:
    """Returns whether the elements of a sequence can be read in advance without effects."""
    return isinstance(sequence, ColumnSequence) or (isinstance(sequence, HasColumns) and sequence.is_held)


def element_columns(
    sequence: Iterable[object], element: Type, number: int, most: int, first: int = 0
) -> Iterator[Column]:
    """Yields all elements of a sequence in columns. The last batch, if it has fewer rows, is in a column of its own.

    Args:
      sequence: The sequence.
      element: The type of the elements.
      number: The number of the pass, which matters if the order differs between passes.
      most: The maximum number of elements of a column.
      first: The number of elements of the first column. The others have twice as many as the one before. By default,
        all have as many as possible.
    """
    first = first or most
    if isinstance(sequence, HasColumns):
        yield from sequence.columns(number, most, first)
    elif isinstance(sequence, ColumnSequence):
        batching, column = sequence.batching, sequence.column
        if batching is None:
            for start, stop in _cuts(len(column), most, first):
                yield column.slice(start, stop)
            return
        rows, size, order = len(column), batching.size, batching.order(len(column), number)
        whole = rows // size
        for start, stop in _cuts(whole, most, first):
            cut = slice(start * size, stop * size)
            yield _batches(column, cut if order is None else order[cut], size)
        if batching.count(rows) > whole:
            rest = slice(whole * size, rows)
            yield _batches(column, rest if order is None else order[rest], rows - whole * size)
    else:
        elements = in_pass(sequence, number)
        while some := list(itertools.islice(elements, first)):
            yield column_from_payloads(some, element)
            first = min(2 * first, most)


def _cuts(length: int, most: int, first: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < length:
        stop = min(start + first, length)
        yield start, stop
        start, first = stop, min(2 * first, most)


def _batches(column: Column, rows: "slice | NDArray[np.intp]", size: int) -> Column:
    """Returns the column of the batches that some rows form."""
    if isinstance(column, StructColumn):
        fields = tuple([_batches(field, rows, size) for field in column.fields])
        count = len(range(*rows.indices(len(column)))) if isinstance(rows, slice) else len(rows)
        return StructColumn(fields, count // size)
    values = cast(RowsColumn, column).values
    return RowsColumn(take(values, rows).reshape(-1, size, *values.shape[1:]))
