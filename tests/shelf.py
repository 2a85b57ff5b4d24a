"""Values that are elsewhere, on a shelf of this process: it counts what is taken down, and when."""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import attrs

from fedstack.computations.types.language import Type
from fedstack.computations.values.deferred_column import Elsewhere, Where, stands_for
from fedstack.errors import RemoteError


@attrs.frozen
class Ticket:
    """What another library has for a value that is elsewhere."""

    shelf: "Shelf"
    number: int


_shelves: "weakref.WeakValueDictionary[int, Shelf]" = weakref.WeakValueDictionary()


class Shelf:
    """Has values.

    Attributes:
      reads: Of each time that somebody came, the numbers of the values.
    """

    def __init__(self) -> None:
        self._values: list[object] = []
        self._lock = threading.Lock()
        self.reads: list[list[int]] = []
        _shelves[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _shelf, (id(self),)  # another worker of this process finds the same

    def put(self, value: object) -> Ticket:
        """Returns what stands for a value, or for the error of who should have made it."""
        self._values.append(value)
        return Ticket(self, len(self._values) - 1)

    def take(self, numbers: Sequence[int], where: Where) -> Sequence[object]:
        """Returns values."""
        with self._lock:
            self.reads.append(list(numbers))
        found = [self._values[number] for number in numbers]
        for index, value in enumerate(found):
            if isinstance(value, Exception):
                raise RemoteError(f"The shelf has lost a value: {value}; at {where(index)}", code="DATA_LOSS")
        return found

    @property
    def read(self) -> list[int]:
        """The numbers of all values that were read, in order."""
        return sorted(number for numbers in self.reads for number in numbers)


@stands_for(f"{Ticket.__module__}.{Ticket.__qualname__}")
@attrs.frozen
class Shelved(Elsewhere):
    """Stands for a value on a shelf."""

    ticket: Ticket

    @classmethod
    def read(cls, found: Sequence[Any], member: Type, where: Where) -> Sequence[object]:
        return found[0].ticket.shelf.take([one.ticket.number for one in found], where)


def _shelf(number: int) -> Shelf:
    return _shelves[number]
