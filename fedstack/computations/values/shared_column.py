"""Holds a column that several phases read, so that a peer that has it need not get it again."""

import weakref
from collections.abc import Sequence

from fedstack.computations.values.columns import Column


class SharedColumn(Column):
    """A column, and where copies of it are.

    It lives as long as the run of the schedule that reads it several times. The same range of its clients is the same
    object each time that it is asked for, and so has its copies too.

    Attributes:
      column: The values.
      copies: For each holder of a copy, such as a session at a worker, what it calls it.
    """

    __slots__ = ("__weakref__", "_slices", "column", "copies")

    def __init__(self, column: Column) -> None:
        self.column = column
        self.copies: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self._slices: dict[tuple[int, int], SharedColumn] = {}

    def __len__(self) -> int:
        return len(self.column)

    @property
    def is_here(self) -> bool:
        return self.column.is_here

    def here(self) -> Column:
        return self.column.here()

    def items(self) -> Sequence[object]:
        return self.column.items()

    def slice(self, start: int, stop: int) -> "SharedColumn":
        if (start, stop) == (0, len(self.column)):
            return self
        found = self._slices.get((start, stop))
        if found is None:
            found = self._slices[start, stop] = SharedColumn(self.column.slice(start, stop))
        return found

    def field(self, index: int) -> Column:
        return self.column.field(index)


def unshared(values: Sequence[object]) -> list[object]:
    """Returns a phase's inputs with the plain columns of those that other phases read too."""
    return [value.column if isinstance(value, SharedColumn) else value for value in values]
