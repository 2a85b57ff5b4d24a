"""Holds the elements of a sequence as a column: what came by wire, a few arrays instead of an object per element."""

import itertools
from collections.abc import Iterator, Sequence
from typing import overload

from fedstack.computations.values.columns import Column

# How many elements are made at a time. They are garbage soon, so memory does not grow with the sequence.
_AT_ONCE = 1024


class ColumnSequence(Sequence[object]):
    """A sequence of payloads that are made of a column when they are asked for, each time anew.

    Attributes:
      column: The elements, one where a column of clients has a client.
    """

    __slots__ = ("column",)

    def __init__(self, column: Column) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __iter__(self) -> Iterator[object]:
        return itertools.chain.from_iterable(self.lists(_AT_ONCE))

    def lists(self, size: int) -> Iterator[Sequence[object]]:
        """Yields the elements in lists of so many."""
        column, count = self.column, len(self.column)
        return (column.slice(first, min(first + size, count)).items() for first in range(0, count, size))

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[object]: ...
    def __getitem__(self, index: int | slice) -> object:
        places = range(len(self.column))[index]
        if isinstance(places, int):
            return self.column.slice(places, places + 1).items()[0]
        if places.step == 1:
            return ColumnSequence(self.column.slice(places.start, max(places.start, places.stop)))
        return [self[place] for place in places]

    def __repr__(self) -> str:
        return f"<ColumnSequence of {len(self)} elements>"
