"""Defines two kinds of caches: least-recently-used caches, and results that are stored in the object they describe."""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from fedstack.foundations.after_fork import renew_after_fork

_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedCache(Generic[_K, _V]):
    """A cache that evicts the least recently used entries. It is not thread-safe.

    Args:
      max_items: The maximum number of entries.
      max_bytes: The maximum total size in bytes. An entry that exceeds the maximum is kept until the next entry is
        added.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: OrderedDict[_K, tuple[_V, int]] = OrderedDict()
        self.bytes = 0

    def get(self, key: _K) -> _V | None:
        """Returns the value of a key and marks the entry as the most recently used; `None` if the key is unknown."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: _K, value: _V, size: int) -> None:
        """Adds or replaces the value of a key. `size` is the size of the value in bytes."""
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
    """A thread-safe `BoundedCache`. It is empty in a forked child if a thread was using it at the time of the fork."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        super().__init__(max_items, max_bytes)
        self._lock = threading.Lock()
        renew_after_fork(self)

    def get(self, key: _K) -> _V | None:
        # Repeats the inherited method instead of calling it, because every call of a computation runs this method.
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


# The results that `made_once` stored in one object, by decorated function.
Made: TypeAlias = dict[Callable[[Any], object], Any]


def made_once(make: Callable[[_K], _V]) -> Callable[[_K], _V]:
    """Decorates a one-argument function. Its result is computed once per argument and stored in the argument's `made`.

    The result lives as long as the argument. Two threads may both compute the result, but all callers receive the
    result that was stored first. Errors are not stored.
    """

    @functools.wraps(make)
    def find(keeper: Any) -> _V:
        made: Made = keeper.made
        try:
            return made[make]
        except KeyError:
            pass
        return made.setdefault(make, make(keeper))

    return find
