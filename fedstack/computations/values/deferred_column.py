"""Represents clients' values in another store by stand-ins. Values are not read until they are used.

| user | values that are read |
| --- | --- |
| a phase in this process (`base/client_blocks.py`) | the clients of a block, just before they run |
| a message to a worker (`codec/packing.py`) | all clients of the worker, unless the worker reads the values itself |
| all other users | the required values |
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_string, join_path
from fedstack.computations.values.column_sequence import BlockSequence, HasBlocks
from fedstack.computations.values.columns import Column, Payload, RowsColumn, column_from_payloads
from fedstack.computations.values.records import split_struct
from fedstack.computations.values.sequences import Batches, Batching
from fedstack.computations.values.tensor_values import mismatch

Where = Callable[[int], str]
# Builds a column from one Python value per client, or raises an error that names the client with a mismatched value.
Build = Callable[[Sequence[object], Type, Where], Column]
_E = TypeVar("_E", bound="Elsewhere")

# The classes of stand-ins for objects of other packages, by the names of the objects' classes.
_standing_for: "dict[str, type[Elsewhere]]" = {}
# Descriptions of objects of other packages that are not accepted as values, and advice, by the names of their classes.
_refused: dict[str, tuple[str, str]] = {}
# The classes of most values. Their instances are never in another store.
_USUAL = frozenset({int, float, bool, str, bytes, tuple, list, dict, np.ndarray, np.float32, np.float64, np.int32})
_FIRST = "[client 0]"


class Elsewhere:
    """A small, picklable stand-in for a Python value in another store.

    Attributes:
      is_result: Whether the stand-in stays in the place of the value in the list that a call returns.
    """

    __slots__ = ()
    is_result = False

    @classmethod
    def kinds(cls, found: Iterable[Any]) -> "set[type[Elsewhere]]":
        """Returns the classes of all stand-ins that are read when the given stand-ins of this class are read."""
        return {cls}

    @classmethod
    def read(cls, found: Sequence[Any], member: Type, where: Where) -> "Sequence[object] | Column":
        """Reads the values of many stand-ins, and returns them in a form that users may pass, or as a column.

        This method may be called on any thread, and may block.

        Args:
          found: The stand-ins, all of this class.
          member: The expected type of the values. Values are checked afterwards, those of columns are not.
          where: Returns the path of the value at an index, for error messages.

        Raises:
          FedstackError: If a value cannot be read. The error is about the first such value.
        """
        raise NotImplementedError

    def check(self, member: Type, place: str) -> None:
        """Checks the known properties of the value before it is read.

        Args:
          member: The expected type of the value.
          place: The path of the value, for error messages.

        Raises:
          TypeMismatchError: If the value does not match the type.
        """


def stands_for(name: str) -> "Callable[[type[_E]], type[_E]]":
    """Returns a decorator that registers a subclass of `Elsewhere` for objects of the class with the given name."""

    def register(kind: type[_E]) -> type[_E]:
        _standing_for[name] = kind
        return kind

    return register


def refuse(name: str, found: str, advice: str) -> None:
    """Registers a class of another package whose objects are not accepted as clients' values.

    Args:
      name: The name of the class, including its module.
      found: The description of the class's objects, for error messages.
      advice: The advice on what to pass instead, for error messages.
    """
    _refused[name] = found, advice


def refusal(kind: type[object]) -> tuple[str, str] | None:
    """Returns the description and the advice for objects of a class that `refuse` registered; `None` for others."""
    return _refused.get(_name_of(kind))


class DeferredColumn(Column):
    """A column of clients' values, some of which are in another store.

    Attributes:
      values: The payload of each client's value, or the stand-in for the value.
      place: The path of the value of client 0, for error messages.
      first: The index of the first client.

    Args:
      values: See above.
      member: The type of the values.
      place: See above.
      build: Builds a column of the values after they have been read.
      first: See above.
      picks: The indices that lead from a value to the nested field whose column this is; empty for the values
        themselves.
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
        """Whether this is a column of the values themselves, as opposed to one of their fields."""
        return not self._picks

    @property
    def picks(self) -> Sequence[int]:
        """The indices that lead from a value to the nested field whose column this is."""
        return self._picks

    @property
    def kinds(self) -> set[type[Elsewhere]]:
        """The classes of the stand-ins."""
        return _kinds_of(self.values)

    def here(self) -> Column:
        places = [place for place, value in enumerate(self.values) if isinstance(value, Elsewhere)]

        def where(index: int) -> str:
            return self._where(places[index])

        found = _read([self.values[place] for place in places], self._member, where)
        column = found if isinstance(found, Column) else self._build(found, self._member, where)
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

    def results(self) -> Sequence[Payload]:
        return self.values if self.is_whole and self._has_results else self.items()

    @property
    def _has_results(self) -> bool:
        return any(isinstance(value, Elsewhere) and value.is_result for value in self.values)

    def joined(self, columns: Sequence[Column]) -> "Column | None":
        if not self.is_whole or not self._has_results:
            return None
        values = [value for column in columns for value in column.results()]
        return DeferredColumn(values, self._member, self.place, self._build, self.first)

    def slice(self, start: int, stop: int) -> Column:
        values = self.values[start:stop]
        return DeferredColumn(values, self._member, self.place, self._build, self.first + start, self._picks)

    def field(self, index: int) -> Column:
        picks = (*self._picks, index)
        return DeferredColumn(self.values, self._member, self.place, self._build, self.first, picks)


@attrs.frozen
class _SplitStruct(Elsewhere):
    """A stand-in for a struct some of whose members are in another store.

    Attributes:
      members: The members, or the stand-ins for them, in the order of the type.
    """

    members: Sequence[object]

    @classmethod
    def kinds(cls, found: "Iterable[_SplitStruct]") -> set[type[Elsewhere]]:
        return _kinds_of([member for one in found for member in one.members])

    @classmethod
    def read(cls, found: "Sequence[_SplitStruct]", member: Type, where: Where) -> Sequence[object]:
        columns: list[Iterable[object]] = []
        for place, (name, field_type) in enumerate(fields_of(cast(StructType, member))):
            path: Where = lambda index, name=name, place=place: join_path(where(index), name, place)  # noqa: E731
            columns.append(_read([one.members[place] for one in found], field_type, path))
        return list(zip(*columns))


def _kinds_of(values: Sequence[object]) -> set[type[Elsewhere]]:
    kinds = {type(value) for value in values if isinstance(value, Elsewhere)}
    return {read for kind in kinds for read in kind.kinds(value for value in values if type(value) is kind)}


def _read(values: Sequence[object], member: Type, where: Where) -> "Sequence[object] | Column":
    """Returns values of one type, after reading the values behind stand-ins. Reads stand-ins of one class together."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and issubclass(kind := kinds.pop(), Elsewhere):
        return kind.read(values, member, where)
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
    """Returns a column of values, some of which are in another store, or `None` if all values are in this process.

    Args:
      values: One Python value per client.
      kinds: The classes of the values.
      member: The type of the values. Values in this process are checked immediately.
      where: Returns the path of the value at an index, for error messages.
      build: Builds a column of values that are in this process.
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
    """Returns the stand-in for a value that is in another store or has members there. Other values stay as they are."""
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
        return ClientRows
    return _standing_for.get(_name_of(kind))


def _name_of(kind: type[object]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@attrs.frozen
class ClientRows(Elsewhere):
    """A stand-in for a client's rows as a struct of arrays, as `fedstack.by_client` returns them, or as batches.

    Values that provide their rows in columns (`HasBlocks`) are replaced by this class if their type is not a sequence.

    Attributes:
      source: The sequence whose elements are the rows.
      batching: The rule by which rows form batches; `None` for a struct of arrays.
    """

    source: HasBlocks
    batching: Batching | None = None

    def check(self, member: Type, place: str) -> None:
        found = self.source.element_type
        wanted = member if self.batching is None else member.element if isinstance(member, SequenceType) else None
        if wanted is None:
            mismatch(member, f"{self!r} of {found}", place, "declare a sequence of batches as the type")
        names = _names(found)
        if isinstance(wanted, (StructType, TensorType)) and _names(wanted) != names:
            columns = ", ".join(map(str, names or ["no names"]))
            advice = "declare a sequence of rows, or a struct of arrays with these names and unknown first dimensions"
            mismatch(member, f"{self!r} of rows with {columns}", place, advice)

    @classmethod
    def read(cls, found: Sequence["ClientRows"], member: Type, where: Where) -> Sequence[object]:
        return [rows._value(where(index)) for index, rows in enumerate(found)]

    def _value(self, place: str) -> object:
        element = self.source.element_type
        column = BlockSequence(self.source).held(element).column
        arrays = _arrays(column, element, place)
        return arrays if self.batching is None else Batches(arrays, len(column), self.batching)

    def __repr__(self) -> str:
        return repr(self.source) if self.batching is None else f"{self.source!r} in batches of {self.batching}"


def _names(element: Type) -> "set[str | None] | None":
    return {name for name, _ in fields_of(element)} if isinstance(element, StructType) else None


def _arrays(column: Column, element: Type, place: str) -> Any:
    """Returns a column as an array with a row per element, or a column of structs as a dict or tuple of such arrays."""
    if isinstance(element, StructType):
        fields = [(name, _arrays(column.field(i), t, place)) for i, (name, t) in enumerate(fields_of(element))]
        return dict(fields) if all(name for name, _ in fields) else tuple(member for _, member in fields)
    if isinstance(column, RowsColumn):
        return column.values
    items = cast("Sequence[NDArray[Any]]", column.items())
    shapes = list(dict.fromkeys(map(np.shape, items)))
    if len(shapes) > 1:
        advice = "pad the rows, or declare a sequence of rows as the type"
        mismatch("rows of the same shape", f"the shapes {list(shapes[0])} and {list(shapes[1])}", place, advice)
    tensor = cast(TensorType, element)
    rows = np.empty((len(items), *(shapes or [()])[0]), np.object_ if is_string(tensor) else tensor.dtype)
    for index, item in enumerate(items):
        rows[index] = item
    rows.flags.writeable = False
    return rows
