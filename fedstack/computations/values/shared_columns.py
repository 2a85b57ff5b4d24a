"""Columns that several phases read, of which other processes keep copies."""

import weakref
from collections.abc import Sequence
from typing import cast

import attrs
import numpy as np

from fedstack.computations.values.columns import Column, ConstantColumn, ListColumn, StructColumn


@attrs.frozen(eq=False)
class Copy:
    """A copy of members of a shared column in another process.

    Attributes:
      name: The name of the copy.
      members: The indices of the members in the whole column.
    """

    name: str
    members: range


class SharedColumn(Column):
    """A column that several phases read. It records which peers have copies of which members, to send none twice.

    A shared column lives as long as the run of the schedule, or of the phase, that reads it. Functions that are sent
    like values live longer.

    Args:
      column: The values.
      whole: The column of which this one is a slice; by default it is none.
      first: The index of the first member in the whole column.

    Attributes:
      column: The values.
      whole: The column that records the copies. The copies are needed as long as it exists.
      members: The indices of the members in the whole column.
    """

    __slots__ = ("__weakref__", "_copies", "_whole", "column", "members")

    def __init__(self, column: Column, whole: "SharedColumn | None" = None, first: int = 0) -> None:
        self.column = column
        self.members = range(first, first + len(column))
        self._whole = whole
        self._copies: weakref.WeakKeyDictionary[object, list[Copy]] = (
            weakref.WeakKeyDictionary() if whole is None else whole._copies
        )

    @property
    def whole(self) -> "SharedColumn":
        return self if self._whole is None else self._whole

    @property
    def is_constant(self) -> bool:
        """Whether all clients have the same payload."""
        return isinstance(self.column, ConstantColumn)

    def note_copy(self, owner: object, name: str) -> bool:
        """Records that an owner, such as a session on a worker, has a copy of the members of this column.

        Returns:
          Whether the copy is of use. It is not if all members have the same payload, of which the owner has a copy.
        """
        copies, own = self._copies.setdefault(owner, []), Copy(name, self.members)
        copies.append(own)
        if self.is_constant and copies[0] is not own:  # calls of several threads may share a column
            copies.remove(own)
            return False
        return True

    def parts_at(self, owner: object) -> list[tuple[Copy | None, range]]:
        """Divides the members by the copies of an owner.

        Args:
          owner: The owner, such as a session on a worker.

        Returns:
          Consecutive ranges of members, each with a copy that contains it, or `None` if there is no such copy. If all
          members have the same payload, any copy contains all of them.
        """
        copies = self._copies.get(owner)
        if not copies:
            return [(None, self.members)]
        if self.is_constant:
            return [(copies[0], self.members)]
        parts: list[tuple[Copy | None, range]] = []
        start, stop = self.members.start, self.members.stop
        for copy in sorted(copies, key=lambda copy: copy.members.start):
            first, last = max(start, copy.members.start), min(stop, copy.members.stop)
            if first < last:
                if start < first:
                    parts.append((None, range(start, first)))
                parts.append((copy, range(first, last)))
                start = last
        if start < stop:
            parts.append((None, range(start, stop)))
        return parts

    def __len__(self) -> int:
        return len(self.column)

    @property
    def is_here(self) -> bool:
        return self.column.is_here

    def here(self) -> Column:
        return self.column.here()

    def items(self) -> Sequence[object]:
        return self.column.items()

    def results(self) -> Sequence[object]:
        return self.column.results()

    def slice(self, start: int, stop: int) -> "SharedColumn":
        if (start, stop) == (0, len(self.column)):
            return self
        return SharedColumn(self.column.slice(start, stop), self.whole, self.members.start + start)

    def field(self, index: int) -> Column:
        return self.column.field(index)


def unshared(values: Sequence[object]) -> list[object]:
    """Returns the inputs of a phase, with each shared column replaced by its plain column."""
    return [value.column if isinstance(value, SharedColumn) else value for value in values]


def shared_bytes(columns: Sequence[object]) -> int:
    """Returns the size of the arrays that all clients of some columns share, in bytes."""
    return sum(_shared_bytes(column) for column in columns)


def _shared_bytes(column: object) -> int:
    if isinstance(column, StructColumn):
        return shared_bytes(column.fields)
    column = column.column if isinstance(column, SharedColumn) else column
    return _array_bytes(column.value) if isinstance(column, ConstantColumn) else 0


def _array_bytes(payload: object) -> int:
    if isinstance(payload, np.ndarray):
        return payload.nbytes
    return sum(map(_array_bytes, cast("tuple[object, ...]", payload))) if isinstance(payload, tuple) else 0


def bytes_per_client(column: Column) -> int:
    """Returns the size of the arrays of a column's first client, in bytes, without arrays that all clients share."""
    if isinstance(column, SharedColumn):
        return bytes_per_client(column.column)
    if isinstance(column, StructColumn):
        return sum(map(bytes_per_client, column.fields))
    if isinstance(column, ListColumn) and len(column) and isinstance(column.values[0], np.ndarray):
        return column.values[0].nbytes
    return 0
