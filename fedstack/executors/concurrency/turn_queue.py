"""Defines a queue that serves the owners of its items in turn, so that none of them delays the others."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class TurnQueue(Generic[_T]):
    """A queue that serves the owners of its items in turn, and each owner's items in the order of arrival."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[_T]] = OrderedDict()
        self._size = 0

    def append(self, item: _T, owner: str) -> None:
        """Adds an item after the other items of its owner."""
        self._items.setdefault(owner, deque()).append(item)
        self._size += 1

    @property
    def owners(self) -> Iterator[str]:
        """The owners of items, in the order in which they are served."""
        return iter(self._items)

    def popleft(self, owner: str | None = None) -> _T:
        """Removes and returns the first item of an owner, by default of the first owner."""
        owner = next(self.owners) if owner is None else owner
        items = self._items[owner]
        item = items.popleft()
        self._size -= 1
        if items:
            self._items.move_to_end(owner)
        else:
            del self._items[owner]
        return item

    def remove(self, item: _T) -> None:
        """Removes an item if the queue contains it."""
        for owner, items in self._items.items():
            if item in items:
                items.remove(item)
                self._size -= 1
                if not items:
                    del self._items[owner]
                return

    def take_all(self) -> list[_T]:
        """Removes and returns all items."""
        found = list(self)
        self._items.clear()
        self._size = 0
        return found

    def __iter__(self) -> Iterator[_T]:
        for items in self._items.values():
            yield from items

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<TurnQueue of {self._size} items of {len(self._items)} owners>"
