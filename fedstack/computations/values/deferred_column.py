"""Holds values of clients that are elsewhere: what stands for them is sliced and handed on, and read when it is used.

| who uses them | reads |
| --- | --- |
| a phase in this process (`base/client_blocks.py`) | the clients of a block at a time, just before they run |
| a message to a worker (`codec/packing.py`) | all clients of the worker, unless that reads them itself |
| everything else | what it asks for |
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import attrs
import numpy as np

from fedstack.computations.types.language import SequenceType, StructType, Type
from fedstack.computations.types.type_structure import fields_of, join_path
from fedstack.computations.values.column_sequence import HasBlocks
from fedstack.computations.values.columns import Column, Payload, column_from_payloads
from fedstack.computations.values.records import split_struct
from fedstack.computations.values.tensor_values import mismatch

Where = Callable[[int], str]
# Makes a column of values as users give them, one per client, or says which client's does not fit.
Build = Callable[[Sequence[object], Type, Where], Column]
_E = TypeVar("_E", bound="Elsewhere")

# By the names of classes of others what stands here for an object of such a class.
_standing_for: "dict[str, type[Elsewhere]]" = {}
# What stands here for what has rows in columns.
_standing_for_blocks: "list[Any]" = []
# By the names of classes of others what their objects are called, and what to give in place of one.
_refused: dict[str, tuple[str, str]] = {}
# What most values are: nobody asks these where they are.
_USUAL = frozenset({int, float, bool, str, bytes, tuple, list, dict, np.ndarray, np.float32, np.float64, np.int32})
_FIRST = "[client 0]"


class Elsewhere:
    """Stands for a Python value that is elsewhere. It is small, and can be pickled."""

    __slots__ = ()

    @classmethod
    def kinds(cls, found: Iterable[Any]) -> "set[type[Elsewhere]]":
        """Returns the classes of what is read for some of this class."""
        return {cls}

    @classmethod
    def read(cls, found: Sequence[Any], member: Type, where: Where) -> Sequence[object]:
        """Returns values as users would give them, many at a time; on any thread, and it may wait for them.

        Args:
          found: What stands for them, each of this class.
          member: The type that they shall fit, which is checked afterwards.
          where: Gives the path of the value at an index, for messages.

        Raises:
          FedstackError: If one cannot be read: the first.
        """
        raise NotImplementedError

    def check(self, member: Type, place: str) -> None:
        """Checks what can be known of the value before it is read.

        Args:
          member: The type that it shall fit.
          place: Where it stands, for messages.

        Raises:
          TypeMismatchError: If it does not.
        """


def stands_for(name: str) -> "Callable[[type[_E]], type[_E]]":
    """Returns a decorator of a class, of which one is made of each object of another one: of the class of that name."""

    def register(kind: type[_E]) -> type[_E]:
        _standing_for[name] = kind
        return kind

    return register


def stands_for_blocks(kind: "type[_E]") -> "type[_E]":
    """Makes one of this class of each value that has rows in columns, where no sequence is wanted of it."""
    _standing_for_blocks.append(kind)
    return kind


def refuse(name: str, found: str, advice: str) -> None:
    """Makes objects of a class of others no values of clients, whatever it is that they hold.

    Args:
      name: The name of the class, with its module.
      found: What its objects are called in messages.
      advice: What to give in place of one.
    """
    _refused[name] = found, advice


def refusal(kind: type[object]) -> tuple[str, str] | None:
    """Returns what objects of a class are called and what to give in place of one, if they are no values."""
    return _refused.get(_name_of(kind))


class DeferredColumn(Column):
    """A value for each client, of which some are elsewhere.

    Attributes:
      values: For each client what stands for its value, or its payload.
      place: The path of the value of client 0, for messages.
      first: The index of the first client.

    Args:
      values: See above.
      member: The type of the values.
      place: See above.
      build: Makes a column of them once they are here.
      first: See above.
      picks: Which field of the values, and of that field, and so on, this is a column of.
    """

    __slots__ = ("_build", "_member", "_picks", "first", "place", "values")

    def __init__(
        self,
        values: Sequence[Payload],
        member: Type,
        place: str,
        build: Build,
        first: int = 0,
        picks: Sequence[int] = (),
    ) -> None:
        self.values = values
        self.place = place
        self.first = first
        self._member = member
        self._build = build
        self._picks = picks

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_here(self) -> bool:
        return False

    @property
    def is_whole(self) -> bool:
        """Whether it is of the values themselves, not of one of their fields."""
        return not self._picks

    @property
    def kinds(self) -> set[type[Elsewhere]]:
        """What stands for the values that are elsewhere."""
        return _kinds_of(self.values)

    def here(self) -> Column:
        places = [place for place, value in enumerate(self.values) if isinstance(value, Elsewhere)]

        def where(index: int) -> str:
            return self._where(places[index])

        found = _read([self.values[place] for place in places], self._member, where)
        column = self._build(found, self._member, where)
        if len(places) < len(self.values):
            payloads = list(self.values)
            for place, payload in zip(places, column.items()):
                payloads[place] = payload
            column = column_from_payloads(payloads, self._member, list_is_own=True)
        for index in self._picks:
            column = column.field(index)
        return column

    def _where(self, index: int) -> str:
        return self.place.replace(_FIRST, f"[client {self.first + index}]", 1)

    def items(self) -> Sequence[Payload]:
        return self.here().items()

    def slice(self, start: int, stop: int) -> Column:
        values = self.values[start:stop]
        return DeferredColumn(values, self._member, self.place, self._build, self.first + start, self._picks)

    def field(self, index: int) -> Column:
        picks = (*self._picks, index)
        return DeferredColumn(self.values, self._member, self.place, self._build, self.first, picks)


@attrs.frozen
class _SplitStruct(Elsewhere):
    """Stands for a struct that is here, some members of which are elsewhere.

    Attributes:
      members: Its members in the order of the type, or what stands for them.
    """

    members: Sequence[object]

    @classmethod
    def kinds(cls, found: "Iterable[_SplitStruct]") -> set[type[Elsewhere]]:
        return _kinds_of([member for one in found for member in one.members])

    @classmethod
    def read(cls, found: "Sequence[_SplitStruct]", member: Type, where: Where) -> Sequence[object]:
        columns: list[Sequence[object]] = []
        for place, (name, field_type) in enumerate(fields_of(cast(StructType, member))):
            path: Where = lambda index, name=name, place=place: join_path(where(index), name, place)  # noqa: E731
            columns.append(_read([one.members[place] for one in found], field_type, path))
        return list(zip(*columns))


def _kinds_of(values: Sequence[object]) -> set[type[Elsewhere]]:
    kinds = {type(value) for value in values if isinstance(value, Elsewhere)}
    return {read for kind in kinds for read in kind.kinds(value for value in values if type(value) is kind)}


def _read(values: Sequence[object], member: Type, where: Where) -> Sequence[object]:
    """Returns values of one type; of those that are elsewhere all of a kind are read together."""
    read = list(values)
    places_of: dict[type[Elsewhere], list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, Elsewhere):
            places_of.setdefault(type(value), []).append(place)
    for kind, places in places_of.items():
        some = [values[place] for place in places]
        for place, value in zip(places, kind.read(some, member, lambda index, places=places: where(places[index]))):
            read[place] = value
    return read


def deferred(
    values: Sequence[object], kinds: set[type[object]], member: Type, where: Where, build: Build
) -> DeferredColumn | None:
    """Returns the column of values some of which are elsewhere; `None` if all are here.

    Args:
      values: One value per client, as users give them.
      kinds: Their classes.
      member: The type that each must fit; those that are here are checked at once.
      where: Gives the path of the value at an index.
      build: Makes a column of values that are here.
    """
    if kinds <= _USUAL:
        return None
    for kind in kinds:
        if (refused := refusal(kind)) is not None:
            found, advice = refused
            mismatch(member, found, where([type(value) for value in values].index(kind)), advice)
    standing = {kind: made for kind in kinds if (made := _standing(kind, member)) is not None}
    if not standing:
        return None
    found = [
        made(value) if (made := standing.get(type(value))) is not None else _standing_in(value, member, where, index)
        for index, value in enumerate(values)
    ]
    for index, value in enumerate(found):
        if isinstance(value, Elsewhere):
            value.check(member, where(index))
    places = [place for place, value in enumerate(found) if not isinstance(value, Elsewhere)]
    column = build([values[place] for place in places], member, lambda index: where(places[index]))
    for place, payload in zip(places, column.items()):
        found[place] = payload
    return DeferredColumn(found, member, where(0), build)


def _standing_in(value: object, member: Type, where: Where, index: int) -> object:
    """Returns what stands for a value that is elsewhere, or for one with such members; others as they are."""
    if type(value) not in _USUAL and (made := _standing(type(value), member)) is not None:
        return made(value)
    if not isinstance(member, StructType):
        return value
    fields = fields_of(member)
    members = [
        _standing_in(one, field_type, lambda index, name=name, place=place: join_path(where(index), name, place), index)
        for place, (one, (name, field_type)) in enumerate(zip(split_struct(value, member, where(index)), fields))
    ]
    return _SplitStruct(members) if any(isinstance(one, Elsewhere) for one in members) else value


def _standing(kind: type[object], member: Type) -> Callable[[Any], Elsewhere] | None:
    if issubclass(kind, Elsewhere):
        return lambda value: cast(Elsewhere, value)
    if issubclass(kind, HasBlocks) and not isinstance(member, SequenceType):
        return _standing_for_blocks[0]
    return _standing_for.get(_name_of(kind))


def _name_of(kind: type[object]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
