"""Bounds what types take that others send: the language keeps each type that there ever was.

It does so to have one object for equal types, which makes comparing them cheap, and no more than that: types are
compared by structure where they are two objects. So a process that serves others lets go of those that nothing refers
to, once they are not among those that were made last.
"""

import importlib
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, MutableMapping
from typing import Any, Generic, TypeVar, cast

from fedstack.computations.types.language import Type

_T = TypeVar("_T")
# Enough for what is made anew in each call, and what a worker is sent in its life as a rule.
_MOST_RECENT = 10_000
_MOST_RECENT_BYTES = 64 << 20


class TypeMemo(Generic[_T]):
    """Keeps something for each type, for as long as the type lives. What is kept must not refer to the type.

    It goes by identity: comparing types takes a while, and there is one object for equal ones nearly always.
    """

    def __init__(self) -> None:
        self._items: dict[int, tuple[_T, weakref.ref[Type]]] = {}

    def get(self, type_spec: Type) -> _T | None:
        """Returns what is kept for a type."""
        found = self._items.get(id(type_spec))
        return None if found is None else found[0]

    def put(self, type_spec: Type, value: _T) -> _T:
        """Keeps a value for a type, and returns it."""
        key, items = id(type_spec), self._items
        # It is called before anything else can have the same identity.
        items[key] = value, weakref.ref(type_spec, lambda _: items.pop(key, None) and None)
        return value

    def __len__(self) -> int:
        return len(self._items)


class _RecentTypes:
    """Keeps the types that were made last, and no more bytes of messages than they may have come from."""

    def __init__(self) -> None:
        self._types: deque[Type] = deque(maxlen=_MOST_RECENT)
        self._bytes = 0
        self.on_clear: list[Callable[[], object]] = []

    def add(self, made: Type) -> None:
        self._types.append(made)

    def received(self, size: int) -> None:
        """Takes note of a message of types, or of a computation, that has come from elsewhere."""
        self._bytes += size
        if self._bytes <= _MOST_RECENT_BYTES:
            return
        self._bytes = 0
        self._types.clear()
        for clear in self.on_clear:
            clear()

    def __len__(self) -> int:
        return len(self._types)


class _Pool(weakref.WeakValueDictionary[object, Type]):
    """The types of one class: those that something refers to."""

    def __setitem__(self, key: object, value: Type) -> None:
        super().__setitem__(key, value)
        recent_types.add(value)


recent_types = _RecentTypes()


def let_go_of_types() -> bool:
    """Makes this process let go of types that nothing refers to; tells whether it does.

    It does not where the language has another way to keep them than it had when this was written.
    """
    module: Any = importlib.import_module("federated_language.types.computation_types")
    pools: object = getattr(module, "_intern_pool", None)
    if not isinstance(pools, defaultdict):
        return False
    known = cast("defaultdict[type[Type], MutableMapping[object, Type]]", pools)
    known.default_factory = _Pool
    for kind, pool in list(known.items()):
        if not isinstance(pool, _Pool):
            known[kind] = _Pool(dict(pool))
    return True
