"""Defines columns, which store one value per client in a single object.

A federated value is a column throughout the runtime. Only leaf runtimes and folds loop over the clients. A column of
structs is stored as a struct of columns, so that the cost of zipping and selecting does not depend on the number of
clients.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

import numpy as np

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar, is_string
from fedstack.foundations.error_text import counted

# A value in the representation that executors use, see the table in `values.py`. For type checkers it is any object.
# For readers, the name distinguishes payloads from the values that users pass and receive.
Payload: TypeAlias = object


# Rows above this size are not copied when columns are concatenated. A fold adds them one by one anyway.
_LARGE_BYTES = 64 * 1024


class Column:
    """The payloads of a federated value's members, in the order of the clients.

    The class does not derive from `abc.ABC`, because `isinstance` would take six times as long, and each call checks
    the class two dozen times.
    """

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def is_here(self) -> bool:
        """Whether all payloads are in this process."""
        return True

    def here(self) -> "Column":
        """Returns a column with the same payloads, all of which are in this process."""
        return self

    def items(self) -> Sequence[Payload]:
        """Returns the payload of each client."""
        raise NotImplementedError

    def results(self) -> Sequence[Payload]:
        """Returns the payload of each client for the result of a call, or what stands for it there."""
        return self.items()

    def joined(self, columns: "Sequence[Column]") -> "Column | None":
        """Returns the concatenation of columns, of which this is one, if it need not have their payloads here."""
        return None

    def slice(self, start: int, stop: int) -> "Column":
        """Returns the column of the clients from `start` to `stop` (exclusive)."""
        raise NotImplementedError

    def field(self, index: int) -> "Column":
        """Returns the column of one field of a column of structs."""
        raise TypeError(f"Expected a column of structs, found {self!r}")

    def __iter__(self) -> Iterator[Payload]:
        return iter(self.items())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {counted(len(self), 'client')}>"


class RowsColumn(Column):
    """A column of arrays of the same shape, stored in one read-only array of shape [clients, ...]."""

    __slots__ = ("values",)

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that contains all clients."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def items(self) -> Sequence[Payload]:
        return list(self.values)

    def slice(self, start: int, stop: int) -> Column:
        return type(self)(self.values[start:stop])


class ScalarColumn(RowsColumn):
    """A column of numeric or boolean scalars, stored in one NumPy array of shape [clients]."""

    __slots__ = ()


class ListColumn(Column):
    """A column of separate payloads of any kind, such as arrays, strings or sequences.

    Attributes:
      values: The payloads.
      list_is_own: Whether `values` is a list that only this column references.
    """

    __slots__ = ("list_is_own", "values")

    def __init__(self, values: Sequence[Payload], *, list_is_own: bool = False) -> None:
        self.values = values
        self.list_is_own = list_is_own

    def __len__(self) -> int:
        return len(self.values)

    def items(self) -> Sequence[Payload]:
        return self.values

    def slice(self, start: int, stop: int) -> Column:
        return ListColumn(self.values[start:stop])

    def field(self, index: int) -> Column:
        return ListColumn([cast("tuple[object, ...]", value)[index] for value in self.values])


class StructColumn(Column):
    """A column of structs, stored as one column per field."""

    __slots__ = ("fields", "size")

    def __init__(self, fields: tuple[Column, ...], size: int) -> None:
        self.fields = fields
        self.size = size

    def __len__(self) -> int:
        return self.size

    @property
    def is_here(self) -> bool:
        return all(field.is_here for field in self.fields)

    def here(self) -> Column:
        return self if self.is_here else StructColumn(tuple([field.here() for field in self.fields]), self.size)

    def items(self) -> Sequence[Payload]:
        if not self.fields:
            return [()] * self.size
        return list(zip(*(field.items() for field in self.fields)))

    def slice(self, start: int, stop: int) -> Column:
        return StructColumn(tuple(field.slice(start, stop) for field in self.fields), stop - start)

    def field(self, index: int) -> Column:
        return self.fields[index]


class ConstantColumn(Column):
    """A column with the same payload for every client, such as the result of a broadcast."""

    __slots__ = ("size", "value")

    def __init__(self, value: Payload, size: int) -> None:
        self.value = value
        self.size = size

    def __len__(self) -> int:
        return self.size

    def items(self) -> Sequence[Payload]:
        return [self.value] * self.size

    def slice(self, start: int, stop: int) -> Column:
        return ConstantColumn(self.value, stop - start)

    def field(self, index: int) -> Column:
        return ConstantColumn(cast("tuple[object, ...]", self.value)[index], self.size)


def zip_columns(fields: Sequence[Column], size: int) -> Column:
    """Returns a column of structs whose fields are the given columns."""
    if all(isinstance(field, ConstantColumn) for field in fields):
        return ConstantColumn(tuple(cast(ConstantColumn, field).value for field in fields), size)
    return StructColumn(tuple(fields), size)


def empty_column(member: Type) -> Column:
    """Returns a column without clients."""
    return column_from_payloads([], member)


def column_from_payloads(payloads: Sequence[Payload], member: Type, *, list_is_own: bool = False) -> Column:
    """Returns a column of payloads, which are not checked against the type.

    Args:
      payloads: The payloads.
      member: The type of the payloads.
      list_is_own: Whether `payloads` is a list that only the caller references.
    """
    if isinstance(member, StructType):
        types = [field_type for _, field_type in fields_of(member)]
        rows = cast("Sequence[tuple[object, ...]]", payloads)
        columns = list(map(list, zip(*rows))) if rows else [list[object]() for _ in types]
        fields = [column_from_payloads(values, t, list_is_own=True) for values, t in zip(columns, types)]
        return StructColumn(tuple(fields), len(payloads))
    if isinstance(member, TensorType) and is_scalar(member) and not is_string(member):
        return ScalarColumn(np.array(payloads, member.dtype))
    return ListColumn(payloads, list_is_own=list_is_own)


def concatenate(columns: Sequence[Column], member: Type) -> Column:
    """Returns the concatenation of columns whose payloads have the type `member`."""
    if len(columns) == 1:
        return columns[0]
    size = sum(len(column) for column in columns)
    if all(isinstance(column, ConstantColumn) for column in columns):
        constants = cast("Sequence[ConstantColumn]", columns)
        if all(constant.value is constants[0].value for constant in constants):
            return ConstantColumn(constants[0].value, size)
    if all(isinstance(column, RowsColumn) for column in columns):
        arrays = [cast(RowsColumn, column).values for column in columns]
        if all(array[:1].nbytes > _LARGE_BYTES for array in arrays):
            return ListColumn([row for array in arrays for row in array])
        if len({array.shape[1:] for array in arrays}) == 1:
            joined = np.concatenate(arrays)
            joined.flags.writeable = False
            return type(cast(RowsColumn, columns[0]))(joined)
    if all(isinstance(column, StructColumn) for column in columns):
        structs = cast("Sequence[StructColumn]", columns)
        types = [field_type for _, field_type in fields_of(cast(StructType, member))]
        return StructColumn(tuple(concatenate([s.fields[i] for s in structs], t) for i, t in enumerate(types)), size)
    for column in columns:
        if (found := column.joined(columns)) is not None:
            return found
    return column_from_payloads([payload for column in columns for payload in column.items()], member)


class JoinedColumn(Column):
    """Several columns as one. They are concatenated when their payloads are needed, because some may still be received.

    Args:
      parts: The columns.
      member: The type of the payloads.
    """

    __slots__ = ("member", "parts")

    def __init__(self, parts: Sequence[Column], member: Type) -> None:
        self.parts = parts
        self.member = member

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def is_here(self) -> bool:
        return False

    def here(self) -> Column:
        return concatenate([part.here() for part in self.parts], self.member)

    def items(self) -> Sequence[object]:
        return self.here().items()

    def slice(self, start: int, stop: int) -> Column:
        found: list[Column] = []
        offset = 0
        for part in self.parts:
            first, last = max(start - offset, 0), min(stop - offset, len(part))
            if first < last:
                found.append(part.slice(first, last))
            offset += len(part)
        return found[0] if len(found) == 1 else JoinedColumn(found, self.member)

    def field(self, index: int) -> Column:
        return self.here().field(index)
