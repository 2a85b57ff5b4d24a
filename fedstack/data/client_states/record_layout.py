"""Lays a client's state out as a record of fixed size."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar, is_string, join_path
from fedstack.computations.values.columns import Column, RowsColumn, ScalarColumn, StructColumn
from fedstack.computations.values.deferred_column import Where
from fedstack.computations.values.example_types import type_at
from fedstack.computations.values.federated_values import column_from_values
from fedstack.computations.values.tensor_values import read_only
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe

# Records and rows start at multiples of this number of bytes.
_ALIGNMENT = 8
_LARGE_BYTES = 1 << 16
_MOST_RECORD_BYTES = (1 << 31) - _ALIGNMENT  # of a dtype of NumPy
# The bytes of a record per client, of shape [clients, bytes of a record]. NumPy would not copy bytes between fields.
Records: TypeAlias = "NDArray[np.uint8]"
# Returns the records of the clients from a start to a stop (exclusive).
RecordsOf: TypeAlias = Callable[[int, int], Records]


@attrs.frozen(eq=False)
class RecordLayout:
    """The layout of the records of states.

    Attributes:
      state_type: The type of a state.
      dtype: The dtype of a record, with a field for each tensor, in the order of the type.
      fields: What tells layouts apart, as JSON: the path, the dtype and the shape of each tensor.
    """

    state_type: Type
    dtype: "np.dtype[np.void]"
    fields: Sequence[Sequence[Any]]

    @classmethod
    def of(cls, like: object) -> "RecordLayout":
        """Returns the layout for states like an example, or of a type.

        Raises:
          InvalidValueError: If a value is neither a number nor an array of numbers.
        """
        state_type = like if isinstance(like, Type) else _type_of(like)
        tensors = list(_tensors(state_type, ""))
        if not tensors:
            raise InvalidValueError("Expected at least one value in the state of a client, found none; pass an example")
        twice = [path for path, count in Counter(path for path, _ in tensors).items() if count > 1]
        if twice:
            raise InvalidValueError(
                f"Expected values with different paths in the state of a client, found {twice[0]!r} twice, as names "
                "with dots or brackets beside nested ones make it; rename one"
            )
        fields = [[path, _name_of(tensor.dtype), list(tensor.shape or ())] for path, tensor in tensors]
        return cls(state_type, record_dtype(fields), fields)

    @property
    def is_small(self) -> bool:
        """Whether many records are better read and written together than one by one."""
        return self.dtype.itemsize < _LARGE_BYTES

    def checked(self, states: Sequence[object], where: Where) -> Column:
        """Returns a column of states.

        Args:
          states: A state for each client.
          where: Returns the path of the state at an index, for error messages.

        Raises:
          TypeMismatchError: If a state has another type.
        """
        try:
            return column_from_values(states, self.state_type, where)
        except TypeMismatchError as error:
            found, declares, _ = str(error).partition("; declare (")
            if not declares:
                raise
            # What the runtime advises is for arguments of computations, which may have unknown dimensions.
            raise TypeMismatchError(
                f"{found}; all states have the shape of like, so pass another like, or pad the state"
            ) from None

    def records(self, column: Column) -> Records:
        """Returns the records of a column of states."""
        records: NDArray[np.void] = np.zeros(len(column), self.dtype)
        for name, leaf in zip(self.dtype.names or (), _leaf_columns(column, self.state_type)):
            if isinstance(leaf, RowsColumn):
                records[name] = leaf.values
            elif self.is_small:
                records[name] = np.asarray(leaf.items()).reshape(records[name].shape)
            else:  # without a second copy of all states
                for row, value in enumerate(leaf.items()):
                    records[name][row] = value
        return records.view(np.uint8).reshape(len(column), self.dtype.itemsize)

    def column(self, records: Records) -> Column:
        """Returns the states of records. They may share their memory, which must not change afterwards."""
        found = np.ascontiguousarray(records).view(self.dtype)[:, 0] if len(records) else np.empty(0, self.dtype)
        return _column_of(self.state_type, iter([found[name] for name in self.dtype.names or ()]))

    def empty(self, clients: int) -> Records:
        """Returns records to write to, for a number of clients."""
        return np.empty((clients, self.dtype.itemsize), np.uint8)

    def check(self, fields: Sequence[Sequence[Any]], place: str) -> None:
        """Checks that stored records have this layout.

        Raises:
          InvalidValueError: If they have another one.
        """
        if not self.has(fields):
            raise InvalidValueError(
                f"Expected states of clients with {_shown(self.fields)} in {place}, found {_shown(fields)}; pass an "
                "example of what is stored as like, or migrate=, a function that converts it, or choose another folder"
            )

    def has(self, fields: Sequence[Sequence[Any]]) -> bool:
        """Returns whether stored records have this layout."""
        return list(map(list, fields)) == list(map(list, self.fields))


def record_dtype(fields: Sequence[Sequence[Any]]) -> "np.dtype[np.void]":
    """Returns the dtype of a record, given the fields of its layout. Its own fields are named by their places."""
    offsets, size, formats = list[int](), 0, list[Any]()
    for _, name, shape in fields:
        dtype: np.dtype[Any] = np.dtype(name)
        offsets.append(size)
        formats.append((dtype, tuple(shape)))
        needed = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        size += needed + -needed % _ALIGNMENT
    if size > _MOST_RECORD_BYTES:
        raise InvalidValueError(
            f"Expected at most {_MOST_RECORD_BYTES} bytes in the state of a client, found {size}; keep smaller states"
        )
    names = [str(place) for place in range(len(formats))]
    layout: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": max(size, _ALIGNMENT)}
    return np.dtype(layout)


def values_of(records: Records, fields: Sequence[Sequence[Any]]) -> Iterator[dict[str, object]]:
    """Yields the values of each record by their paths, given the fields of its layout."""
    for record in np.ascontiguousarray(records).view(record_dtype(fields))[:, 0]:
        yield {path: record[str(number)] for number, (path, _, _) in enumerate(fields)}


def _name_of(dtype: "np.dtype[Any]") -> str:
    return dtype.name if dtype.kind == "V" else dtype.newbyteorder("<").str


def _type_of(like: object) -> Type:
    try:
        return type_at(like, "like")
    except TypeMismatchError as error:
        raise _no_state(like, "the top") from error


def _no_state(found: object, path: str) -> InvalidValueError:
    return InvalidValueError(
        f"Expected numbers, arrays of numbers and structures of them as the state of a client, found {describe(found)} "
        f"at {path}; convert it to an array of fixed shape, of a dtype such as float32"
    )


def _tensors(type_spec: Type, path: str) -> Iterator[tuple[str, TensorType]]:
    """Yields the tensors of a type, each with its path."""
    if isinstance(type_spec, StructType):
        for index, (name, member) in enumerate(fields_of(type_spec)):
            yield from _tensors(member, join_path(path, name, index).removeprefix("."))
    elif isinstance(type_spec, TensorType) and not is_string(type_spec) and None not in (type_spec.shape or ()):
        yield path, type_spec
    else:
        raise _no_state(type_spec, path or "the top")


def _leaf_columns(column: Column, type_spec: Type) -> Iterator[Column]:
    if isinstance(type_spec, StructType):
        for index, (_, member) in enumerate(fields_of(type_spec)):
            yield from _leaf_columns(column.field(index), member)
    else:
        yield column.here()


def _column_of(type_spec: Type, leaves: "Iterator[NDArray[Any]]") -> Column:
    if isinstance(type_spec, StructType):
        fields = tuple(_column_of(member, leaves) for _, member in fields_of(type_spec))
        return StructColumn(fields, len(fields[0]) if fields else 0)
    values = next(leaves)
    # NumPy may round in another way for arrays with other strides.
    plain = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    return (ScalarColumn if is_scalar(cast(TensorType, type_spec)) else RowsColumn)(read_only(plain))


def _shown(fields: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{path or 'one value'} {np.dtype(dtype).name}{shape}" for path, dtype, shape in fields)
