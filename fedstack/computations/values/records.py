"""Defines the struct values that leaf functions see: tuples and dictionaries with access by attribute and by key.

A struct without a Python container of its own arrives as a `Record`; one annotated as a dictionary arrives as a
dictionary that also answers to attributes, one annotated as a named tuple as that, with access by key. All can be
passed on with `**`.

Where a field has the name of a method, it is reached by key: of a dictionary those are all its methods, of a record
`keys`, `values` and `items`. A named tuple, whose fields come before methods, cannot be passed on with `**` if one is
called `keys`.
"""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, SupportsIndex, cast, overload

from fedstack.computations.types.bounded_cache import SharedCache

# The class whose methods the type checker knows; the same object as `tuple`.
_Tuple: type[tuple[object, ...]] = tuple


class Record(tuple[object, ...]):
    """A struct value: a tuple whose fields can also be read as `r.name` and `r["name"]`.

    A tuple underneath makes it as cheap to build as a tuple; subclasses, one per list of names, come from
    `record_class`.
    """

    __slots__ = ()
    __names__: ClassVar[tuple[str | None, ...]] = ()

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> object: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[object, ...]: ...
    def __getitem__(self, key: SupportsIndex | slice | str) -> object:
        if isinstance(key, str):
            try:
                return _Tuple.__getitem__(self, self.__names__.index(key))
            except ValueError:
                raise KeyError(f"Expected one of {list(self.__names__)}, found {key!r}") from None
        return _Tuple.__getitem__(self, key)

    def keys(self) -> tuple[str, ...]:
        """Returns the names; with `__getitem__` this is what `f(**record)` needs."""
        return tuple(name for name in self.__names__ if name is not None)

    def values(self) -> tuple[object, ...]:
        """Returns the values of the named fields, in order."""
        return tuple(self[name] for name in self.keys())

    def items(self) -> Iterator[tuple[str, object]]:
        """Iterates over the named fields, in order."""
        return ((name, self[name]) for name in self.keys())

    def __repr__(self) -> str:
        shown = (f"{value!r}" if name is None else f"{name}={value!r}" for name, value in zip(self.__names__, self))
        return f"Record({', '.join(shown)})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_record, (self.__names__, tuple(self)))


def _rebuild_record(names: tuple[str | None, ...], values: Iterable[object]) -> Record:
    return record_class(names)(values)


def _field_property(index: int) -> property:
    return property(lambda self: _Tuple.__getitem__(self, index))


# Names come from types, and these from clients.
_classes: SharedCache[tuple[str | None, ...], type[Record]] = SharedCache(1024, 16 << 20)
_FIELD_BYTES = 256  # about what a property takes


def record_class(names: tuple[str | None, ...]) -> type[Record]:
    """Returns the `Record` subclass for the given field names."""
    found = _classes.get(names)
    if found is None:
        found = _record_class(names)
        _classes.put(names, found, sum(_FIELD_BYTES + len(name or "") for name in names))
    return found


def _record_class(names: tuple[str | None, ...]) -> type[Record]:
    members: dict[str, object] = {"__slots__": (), "__names__": names}
    for index, name in enumerate(names):
        # A field called "keys" must not take the mapping protocol away: it is reached as r["keys"]. What only a tuple
        # has, such as `count`, nobody looks for in a struct.
        if name is not None and name not in vars(Record):
            members[name] = _field_property(index)
    return type("Record", (Record,), members)


class KeyedTuple:
    """What a named tuple needs to be read by key and passed on with `**`; subclasses are the user's class as well."""

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]]

    def __getitem__(self, key: SupportsIndex | slice | str) -> object:
        members = cast("tuple[object, ...]", self)
        if not isinstance(key, str):
            return _Tuple.__getitem__(members, key)
        try:
            return _Tuple.__getitem__(members, self._fields.index(key))
        except ValueError:
            raise KeyError(f"Expected one of {list(self._fields)}, found {key!r}") from None

    def keys(self) -> tuple[str, ...]:
        """Returns the names; with `__getitem__` this is what `f(**value)` needs."""
        return self._fields

    def __reduce__(self) -> tuple[object, ...]:
        # As one of the user's class, which others know.
        return (_Tuple.__new__, (type(self).__bases__[1], tuple(cast("tuple[object, ...]", self))))


@functools.lru_cache(maxsize=1024)
def keyed_tuple_class(container: type[tuple[object, ...]]) -> type[tuple[object, ...]]:
    """Returns a subclass of a class of named tuples whose instances can be read by key and passed on with `**`.

    What the class has of its own stays, fields and methods.
    """
    members: dict[str, object] = {"__slots__": (), "__doc__": container.__doc__, "__module__": container.__module__}
    if container.__getitem__ is not _Tuple.__getitem__:
        members["__getitem__"] = container.__getitem__
    if hasattr(container, "keys"):
        members["keys"] = inspect.getattr_static(container, "keys")
    return cast("type[tuple[object, ...]]", type(container.__name__, (KeyedTuple, container), members))


class AttributeDict(dict[str, object]):
    """A dictionary whose keys are also attributes."""

    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        return _attribute_of(self, name)


def attribute_dict_maker(names: tuple[str, ...]) -> Callable[[Iterable[object]], AttributeDict]:
    """Returns a function that makes an `AttributeDict` of the values for some names, in their order.

    There may be one per client: a dictionary that is filled item by item takes 0.6 µs, from pairs 0.9, and with the
    items written out 0.25.
    """
    if len(names) == 2:
        first, second = names

        def make_two(values: Iterable[object]) -> AttributeDict:
            made = AttributeDict()
            made[first], made[second] = values
            return made

        return make_two
    if len(names) == 3:
        first, second, third = names

        def make_three(values: Iterable[object]) -> AttributeDict:
            made = AttributeDict()
            made[first], made[second], made[third] = values
            return made

        return make_three
    if len(names) == 4:
        first, second, third, fourth = names

        def make_four(values: Iterable[object]) -> AttributeDict:
            made = AttributeDict()
            made[first], made[second], made[third], made[fourth] = values
            return made

        return make_four

    def make(values: Iterable[object]) -> AttributeDict:
        made = AttributeDict()
        for name, value in zip(names, values):
            made[name] = value
        return made

    return make


class OrderedAttributeDict(OrderedDict[str, object]):
    """An `OrderedDict` whose keys are also attributes."""

    def __getattr__(self, name: str) -> object:
        return _attribute_of(self, name)


def _attribute_of(mapping: Mapping[str, object], name: str) -> object:
    try:
        return mapping[name]
    except KeyError:
        raise AttributeError(f"Expected one of {list(mapping)}, found {name!r}") from None
