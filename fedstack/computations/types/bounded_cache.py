"""Keeps what was used last, up to a number of things and of bytes."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from fedstack.foundations.after_fork import renew_after_fork

_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedCache(Generic[_K, _V]):
    """A cache that lets go of what has been used longest ago; for one thread at a time.

    Args:
      max_items: The most things in it.
      max_bytes: The most bytes that they may have together; what alone has more is kept until something else comes.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: OrderedDict[_K, tuple[_V, int]] = OrderedDict()
        self.bytes = 0

    def get(self, key: _K) -> _V | None:
        """Returns what is kept under a key, which is used by that."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: _K, value: _V, size: int) -> None:
        """Keeps something that has so many bytes."""
        before = self._items.pop(key, None)
        self.bytes += size - (0 if before is None else before[1])
        self._items[key] = value, size
        while len(self._items) > self._max_items or (self.bytes > self._max_bytes and len(self._items) > 1):
            _, (_, freed) = self._items.popitem(last=False)
            self.bytes -= freed

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} items, {self.bytes} bytes>"


class SharedCache(BoundedCache[_K, _V]):
    """A `BoundedCache` for any number of threads. In a forked child one that was just being used begins empty."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        super().__init__(max_items, max_bytes)
        self._lock = threading.Lock()
        renew_after_fork(self)

    def get(self, key: _K) -> _V | None:
        # As above, word for word: this is in the path of each call.
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def put(self, key: _K, value: _V, size: int) -> None:
        with self._lock:
            super().put(key, value, size)

    def renew(self) -> None:
        if self._lock.locked():
            self._items = OrderedDict()
            self.bytes = 0
        self._lock = threading.Lock()
