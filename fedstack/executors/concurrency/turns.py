"""Lets several take turns at the same threads: who has much to do waits for itself, and not the others for it."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class TurnQueue(Generic[_T]):
    """A queue of which the owners of what is in it get the items in turn, each its own in their order."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[_T]] = OrderedDict()
        self._size = 0

    def append(self, item: _T, owner: str) -> None:
        """Adds an item behind all others of its owner."""
        self._items.setdefault(owner, deque()).append(item)
        self._size += 1

    @property
    def owners(self) -> Iterator[str]:
        """The owners, the one whose turn it is first."""
        return iter(self._items)

    def popleft(self, owner: str | None = None) -> _T:
        """Takes out the first item of an owner; by default of the one whose turn it is."""
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
        """Takes out an item, if it is there."""
        for owner, items in self._items.items():
            if item in items:
                items.remove(item)
                self._size -= 1
                if not items:
                    del self._items[owner]
                return

    def take_all(self) -> list[_T]:
        """Takes out everything."""
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
