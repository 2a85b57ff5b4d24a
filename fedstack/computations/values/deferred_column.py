"""Holds values of clients that are elsewhere: what stands for them is sliced and handed on, and read when it is used.

| who uses them | reads |
| --- | --- |
| a phase in this process (`base/client_blocks.py`) | the clients of a block at a time, just before they run |
| a message to a worker (`wire/packing.py`) | all clients of the worker, unless that reads them itself |
| everything else | what it asks for |
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column, Payload, column_from_payloads

Where = Callable[[int], str]
# Makes a column of values as users give them, one per client, or says which client's does not fit.
Build = Callable[[Sequence[object], Type, Where], Column]
_E = TypeVar("_E", bound="Elsewhere")

# By the names of classes of others what stands here for an object of such a class.
_standing_for: "dict[str, type[Elsewhere]]" = {}
# What most values are: nobody asks these where they are.
_USUAL = frozenset({int, float, bool, str, bytes, tuple, list, dict, np.ndarray, np.float32, np.float64, np.int32})
_FIRST = "[client 0]"


class Elsewhere:
    """Stands for a Python value that is elsewhere. It is small, and can be pickled."""

    __slots__ = ()

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


def stands_for(name: str) -> "Callable[[type[_E]], type[_E]]":
    """Returns a decorator of a class, of which one is made of each object of another one: of the class of that name."""

    def register(kind: type[_E]) -> type[_E]:
        _standing_for[name] = kind
        return kind

    return register


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
    def kinds(self) -> set[type[Elsewhere]]:
        """What stands for the values that are elsewhere."""
        return {type(value) for value in self.values if isinstance(value, Elsewhere)}

    def here(self) -> Column:
        places = [place for place, value in enumerate(self.values) if isinstance(value, Elsewhere)]
        column = self._build(self._read(places), self._member, lambda index: self._where(places[index]))
        if len(places) < len(self.values):
            payloads = list(self.values)
            for place, payload in zip(places, column.items()):
                payloads[place] = payload
            column = column_from_payloads(payloads, self._member, list_is_own=True)
        for index in self._picks:
            column = column.field(index)
        return column

    def _read(self, places: Sequence[int]) -> Sequence[object]:
        found: dict[int, object] = {}
        for kind in self.kinds:
            some = [place for place in places if type(self.values[place]) is kind]
            values = kind.read(
                [self.values[place] for place in some], self._member, lambda index, some=some: self._where(some[index])
            )
            found.update(zip(some, values))
        return [found[place] for place in places]

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
    standing = {kind: made for kind in kinds if (made := _standing(kind)) is not None}
    if not standing:
        return None
    found = [made(value) if (made := standing.get(type(value))) is not None else value for value in values]
    places = [place for place, value in enumerate(values) if type(value) not in standing]
    column = build([values[place] for place in places], member, lambda index: where(places[index]))
    for place, payload in zip(places, column.items()):
        found[place] = payload
    return DeferredColumn(found, member, where(0), build)


def _standing(kind: type[object]) -> Callable[[Any], Elsewhere] | None:
    if issubclass(kind, Elsewhere):
        return lambda value: cast(Elsewhere, value)
    return _standing_for.get(f"{kind.__module__}.{kind.__qualname__}")
