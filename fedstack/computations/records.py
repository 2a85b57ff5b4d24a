"""Defines the struct values that leaf functions see: tuples and dictionaries with access by attribute and by key.

A struct without a Python container of its own arrives as a `Record`; one annotated as a dictionary arrives as a
dictionary that also answers to attributes. Both can be passed on with `**`.
"""

import functools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, SupportsIndex, overload

# The class whose methods the type checker knows; the same object as `tuple`.
_Tuple: type[tuple[object, ...]] = tuple


class Record(tuple[object, ...]):
    """A struct value: a tuple whose fields can also be read as `r.name` and `r["name"]`.

    A tuple underneath makes it as cheap to build as a tuple; subclasses, one per list of names, come from
    `record_class`.
    """

    __slots__ = ()
    field_names: ClassVar[tuple[str | None, ...]] = ()

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> object: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[object, ...]: ...
    def __getitem__(self, key: SupportsIndex | slice | str) -> object:
        if isinstance(key, str):
            try:
                return _Tuple.__getitem__(self, self.field_names.index(key))
            except ValueError:
                raise KeyError(f"Expected one of {list(self.field_names)}, found {key!r}") from None
        return _Tuple.__getitem__(self, key)

    def keys(self) -> tuple[str, ...]:
        """Returns the names; with `__getitem__` this is what `f(**record)` needs."""
        return tuple(name for name in self.field_names if name is not None)

    def values(self) -> tuple[object, ...]:
        """Returns the values of the named fields, in order."""
        return tuple(self[name] for name in self.keys())

    def items(self) -> Iterator[tuple[str, object]]:
        """Iterates over the named fields, in order."""
        return ((name, self[name]) for name in self.keys())

    def __repr__(self) -> str:
        shown = (f"{value!r}" if name is None else f"{name}={value!r}" for name, value in zip(self.field_names, self))
        return f"Record({', '.join(shown)})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_record, (self.field_names, tuple(self)))


def _rebuild_record(names: tuple[str | None, ...], values: Iterable[object]) -> Record:
    return record_class(names)(values)


def _field_property(index: int) -> property:
    return property(lambda self: _Tuple.__getitem__(self, index))


@functools.lru_cache(maxsize=1024)
def record_class(names: tuple[str | None, ...]) -> type[Record]:
    """Returns the `Record` subclass for the given field names."""
    members: dict[str, object] = {"__slots__": (), "field_names": names}
    for index, name in enumerate(names):
        # A field called "keys" must not take the mapping protocol away: it is reached as r["keys"].
        if name is not None and not hasattr(Record, name):
            members[name] = _field_property(index)
    return type("Record", (Record,), members)


class AttributeDict(dict[str, object]):
    """A dictionary whose keys are also attributes."""

    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        return _attribute_of(self, name)


class OrderedAttributeDict(OrderedDict[str, object]):
    """An `OrderedDict` whose keys are also attributes."""

    def __getattr__(self, name: str) -> object:
        return _attribute_of(self, name)


def _attribute_of(mapping: Mapping[str, object], name: str) -> object:
    try:
        return mapping[name]
    except KeyError:
        raise AttributeError(f"Expected one of {list(mapping)}, found {name!r}") from None
