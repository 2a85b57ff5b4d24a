"""Writes and reads where clients' values are in a store of files, which the receiver reads itself if it has the store.

The sender has stand-ins of a class of its own (`InStore`), which finds the files and records of many values at once.
The receiver has a `StoredValue` for each of them, and reads those of one block of clients together.
"""

import math
from collections.abc import Container, Iterator, Sequence
from typing import Any, Protocol, cast

import attrs

from fedstack.computations.types.language import StructType, TensorType, Type, computation_pb2
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import fields_of, type_from_proto
from fedstack.computations.values.columns import Column, Payload, StructColumn
from fedstack.computations.values.deferred_column import DeferredColumn, Elsewhere, Where
from fedstack.computations.values.federated_values import column_from_values
from fedstack.computations.values.shared_columns import SharedColumn
from fedstack.computations.values.tensor_values import mismatch
from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.proto.extensions_pb2 import Packed


class StoreFolders(Protocol):
    """The stores that this process has."""

    def find(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that stores have. May block."""
        ...

    def read(self, found: "Sequence[StoredValue]") -> Column:
        """Reads values of one type. May block.

        Raises:
          FedstackError: If a value cannot be read.
        """
        ...

    def write(self, store: str, name: str, type_spec: Type, ids: bytes, values: Column) -> "Sequence[StoredValue]":
        """Writes values to new files, which survive a power failure. May block.

        Args:
          store: The id of the store.
          name: What the names of the files begin with.
          type_spec: The type of the values.
          ids: The id of each client, as JSON.
          values: The values.

        Raises:
          FedstackError: If they cannot be written. The owner of the store removes files that are left.
        """
        ...

    def close(self) -> None:
        """Closes connections, if there are any. Idempotent; never raises."""
        ...


@attrs.frozen(eq=False)
class StoredFile:
    """A file of a store, as one message names it.

    Attributes:
      store: The id of the store.
      name: The name of the file.
      digest: What tells the file from others of the same name.
      type_spec: The type of the values in the store.
      folders: The stores of this process.
    """

    store: str
    name: str
    digest: int
    type_spec: Type
    folders: StoreFolders


@attrs.frozen(eq=False)
class Whereabouts:
    """Where the values of clients are in a store.

    Attributes:
      type_spec: The type of the values.
      files: The name and the digest of each file.
      of: For each value, the index of its file.
      records: For each value, the index of its record in the file, counted from 1; 0 for the shared value.
      shared: The value of all clients that have none in the store; `None` if there is no such value.
      owner: Keeps the files, as long as it exists.
    """

    type_spec: Type
    files: Sequence[tuple[str, int]]
    of: Sequence[int]
    records: Sequence[int]
    shared: Payload
    owner: object


class InStore(Elsewhere):
    """A stand-in for a value in a store that other processes may have, too."""

    __slots__ = ()

    @classmethod
    def store_of(cls, found: Sequence[Any]) -> str | None:
        """Returns the id of the store that has the values of all stand-ins of this class; `None` if no store has."""
        raise NotImplementedError

    @classmethod
    def locate(cls, found: Sequence[Any]) -> Whereabouts:
        """Returns where the values of stand-ins are that are in one store."""
        raise NotImplementedError


@attrs.define(eq=False)  # not frozen: many of them would take twice as long
class StoredValue(InStore):
    """A stand-in for a value in a store of this process, of which another process knows the place.

    Attributes:
      file: The file that has the value.
      row: The index of its record; -1 for a client without a value.
    """

    file: StoredFile
    row: int

    @classmethod
    def read(cls, found: "Sequence[StoredValue]", member: Type, where: Where) -> Column:
        """Reads the values of many clients."""
        return found[0].file.folders.read(found)

    @classmethod
    def store_of(cls, found: "Sequence[StoredValue]") -> str | None:
        """Returns the id of the store that has the values; see `InStore`."""
        store = found[0].file.store
        return store if all(one.file.store == store for one in found) else None

    @classmethod
    def locate(cls, found: "Sequence[StoredValue]") -> Whereabouts:
        """Returns where the values are; see `InStore`."""
        places: dict[tuple[str, int], int] = {}
        of = [places.setdefault((one.file.name, one.file.digest), len(places)) if one.row >= 0 else 0 for one in found]
        return Whereabouts(found[0].file.type_spec, list(places), of, [one.row + 1 for one in found], None, None)


class StoredResult(StoredValue):
    """A stand-in for a result that a worker has written to a store."""

    is_result = True


def _store_of(column: DeferredColumn) -> str | None:
    """Returns the id of the store that has all values of a column; `None` if no store has."""
    kind = type(column.values[0]) if len(column) else None
    if kind is None or not issubclass(kind, InStore) or not all(type(value) is kind for value in column.values):
        return None
    return kind.store_of(column.values)


def stores_of(columns: Sequence[object]) -> Iterator[str]:
    """Yields the ids of the stores that have values of some columns."""
    for column in columns:
        if isinstance(column, SharedColumn):
            yield from stores_of([column.column])
        elif isinstance(column, StructColumn):
            yield from stores_of(column.fields)
        elif isinstance(column, DeferredColumn) and (store := _store_of(column)) is not None:
            yield store


def write_stored(message: Packed.Stored, column: DeferredColumn, stores: Container[str]) -> Whereabouts | None:
    """Writes where the values of a column are, apart from the shared value.

    Args:
      message: The empty message.
      column: The column.
      stores: The ids of the stores that the receiver has.

    Returns:
      Where they are; `None` if the receiver does not have them. Without a shared value if no client has it.
    """
    store = _store_of(column)
    if store is None or store not in stores:
        return None
    found = cast(type[InStore], type(column.values[0])).locate(column.values)
    message.store = store
    message.type.CopyFrom(found.type_spec.to_proto())
    message.pick.extend(column.picks)
    for name, digest in found.files:
        message.file.add(name=name, digest=digest)
    if len(found.files) > 1:
        message.of.extend(found.of)
    message.record.extend(found.records)
    message.first = column.first
    return found if 0 in found.records else attrs.evolve(found, shared=None)


def read_stored(
    message: Packed.Stored,
    shared: Payload,
    stored: Type,
    member: Type,
    path: str,
    folders: StoreFolders,
    kind: type[StoredValue],
) -> DeferredColumn:
    """Returns a column of values that are read when they are used.

    Args:
      message: The message.
      shared: The shared value; `None` if there is none.
      stored: The type of the values in the store, from `stored_type`.
      member: The expected type of the values.
      path: The path of the value, for error messages.
      folders: The stores of this process.
      kind: The class of stand-ins for the values.

    Raises:
      InvalidValueError: If the message is inconsistent.
      TypeMismatchError: If the values do not match the expected type.
    """
    picked = stored
    for index in message.pick:
        fields = fields_of(picked) if isinstance(picked, StructType) else ()
        if index >= len(fields):
            raise InvalidValueError(f"Expected the index of a member of {type_text(picked)} at {path}, found {index}")
        picked = fields[index][1]
    if not member.is_assignable_from(picked):
        mismatch(type_text(member), f"stored values of type {type_text(picked)}", path)
    files = [StoredFile(message.store, one.name, one.digest, stored, folders) for one in message.file]
    of = message.of or [0] * len(message.record)
    if len(of) != len(message.record) or any(
        (record and index >= len(files)) or (not record and shared is None) for index, record in zip(of, message.record)
    ):
        raise InvalidValueError(
            f"Expected a file for each of {len(message.record)} stored values at {path}, found {len(files)} files and "
            f"{len(message.of)} indices; send either no indices, or one valid index for each value"
        )
    values = [kind(files[index], record - 1) if record else shared for index, record in zip(of, message.record)]
    return DeferredColumn(
        values, stored, f"{path}[client 0]", column_from_values, message.first, tuple(map(int, message.pick))
    )


def stored_type(message: computation_pb2.Type, max_bytes: int, path: str) -> Type:
    """Returns the type of the values in a store.

    Raises:
      ResourceLimitError: If a value has more than `max_bytes` bytes.
      InvalidValueError: If the size of a value is not known.
    """
    stored = type_from_proto(message)
    size = _bytes_of(stored)
    if size is None:
        raise InvalidValueError(f"Expected values of fixed size in a store at {path}, found {type_text(stored)}")
    if size > max_bytes:
        raise ResourceLimitError(
            f"Expected at most {max_bytes} bytes in a value, found {size} bytes at {path}; keep smaller states, or "
            "raise the peer's limit (--max-value-bytes)"
        )
    return stored


def _bytes_of(type_spec: Type) -> int | None:
    """Returns the size of a value of a type in bytes; `None` if values differ in size, or are not numbers."""
    if isinstance(type_spec, StructType):
        sizes = [_bytes_of(member) for _, member in fields_of(type_spec)]
        return None if any(size is None for size in sizes) else sum(cast("list[int]", sizes))
    if not isinstance(type_spec, TensorType) or type_spec.shape is None or None in type_spec.shape:
        return None
    return math.prod(cast("Sequence[int]", type_spec.shape)) * type_spec.dtype.itemsize
