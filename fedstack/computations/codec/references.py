"""Writes and reads references to sequences and clients' rows that the receiver reads directly from a data service."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, cast

import attrs
from google.protobuf.any_pb2 import Any

from fedstack.computations.codec.sequence_rows import read_batchings, write_batchings
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.computations.values.column_sequence import BlockSequence, HasBlocks
from fedstack.computations.values.columns import Column, ListColumn, Payload
from fedstack.computations.values.deferred_column import ClientRows, DeferredColumn
from fedstack.computations.values.federated_values import column_from_values
from fedstack.errors import CarrierError, InvalidValueError
from fedstack.proto.extensions_pb2 import Packed

# A function that yields blocks of elements of the sequence at an index in a group; see `ReferenceReader.blocks`.
ReadBlocks: TypeAlias = Callable[["ReferenceGroup", int], Iterator[Column]]


@attrs.frozen(eq=False)
class ReferenceGroup:
    """Parts of one source that were sent together, usually in the order in which they will be read.

    Attributes:
      source: The source, which is the content of a `data` block.
      keys: The key of each part within the source.
      element: The type of the elements of the parts.
      read: A function that reads a part; `None` to use the reader of the service that consumes the parts.
    """

    source: Any
    keys: Sequence[bytes]
    element: Type
    read: ReadBlocks | None = None


class Reference(HasBlocks):
    """A sequence whose elements are a part of a source in a data service.

    Attributes:
      group: The group of parts to which this part belongs.
      place: The index of this part in the group.
    """

    __slots__ = ("group", "place")

    def __init__(self, group: ReferenceGroup, place: int) -> None:
        self.group = group
        self.place = place

    @property
    def element_type(self) -> Type:
        return self.group.element

    @property
    def key(self) -> bytes:
        """The key of this part within the source."""
        return self.group.keys[self.place]

    def blocks(self) -> Iterator[Column]:
        """Yields the elements in blocks.

        Raises:
          CarrierError: If this process runs work for other processes, and is not configured to read from data services
            for them.
        """
        scope = current_scope()
        read = scope.reads if scope.is_for_others else self.group.read
        if read is None:
            raise CarrierError(
                "The worker's configuration contains no data service from which the worker may read a "
                f"{self.group.source.TypeName()}; add the service's address to this configuration: fedstack "
                "serve --data-service ADDRESS, ServerConfig.data_services, or local_worker_pool(data_services=...)"
            )
        return read(self.group, self.place)

    def __len__(self) -> int:
        raise TypeError(
            f"Expected a sequence of known length, found {self!r}; iterate over the sequence to count its elements"
        )

    def __repr__(self) -> str:
        return f"<Reference to {self.key!r}>"


def reference_of(payload: Payload) -> Reference | None:
    """Returns the `Reference` behind a payload, or `None` if the payload is not a reference."""
    source = payload.source if isinstance(payload, BlockSequence) else None
    return source if isinstance(source, Reference) else None


def references_of(payloads: Sequence[Payload]) -> list[Reference]:
    """Returns the references among `payloads`, in order."""
    return [reference for payload in payloads if (reference := reference_of(payload)) is not None]


def write_references(message: Packed.References, references: Sequence[Reference]) -> None:
    """Writes the sources of references, and the key of each reference within its source."""
    places: dict[bytes, int] = {}
    of: list[int] = []
    for reference in references:
        source = reference.group.source
        # `source.value` alone identifies a source, because the same reader reads sources of all types.
        place = places.setdefault(source.value, len(places))
        if place == len(message.source):
            message.source.append(source)
        of.append(place)
    message.key.extend(reference.key for reference in references)
    if len(places) > 1:
        message.of.extend(of)


def read_references(message: Packed.References, element: Type, path: str) -> Column:
    """Returns a column of sequences whose elements are read when they are consumed.

    Args:
      message: The message.
      element: The type of the elements.
      path: The path of the value, for error messages.

    Raises:
      InvalidValueError: If the message is inconsistent.
    """
    keys, of = message.key, message.of
    if len(of) not in (0, len(keys)) or not message.source or any(place >= len(message.source) for place in of):
        raise InvalidValueError(
            f"Expected a source for each of {len(keys)} references at {path}, found {len(message.source)} sources and "
            f"{len(of)} source indices; send either no indices, or one valid index per reference"
        )
    groups = [ReferenceGroup(source, cast("list[bytes]", []), element) for source in message.source]
    found: list[Payload] = []
    for key, place in zip(keys, of or itertools.repeat(0)):
        group = groups[place]
        found.append(BlockSequence(Reference(group, len(group.keys))))
        cast("list[bytes]", group.keys).append(key)
    return ListColumn(found)


def referred_rows(column: DeferredColumn) -> Sequence[ClientRows]:
    """Returns the references in a column if all its values are references to rows of one type, otherwise `()`."""
    rows = [one for one in column.values if isinstance(one, ClientRows) and isinstance(one.source, Reference)]
    if not column.is_whole or len(rows) < len(column) or len({one.batching is None for one in rows}) > 1:
        return ()
    first = rows[0].source.element_type if rows else None
    return rows if all(first == one.source.element_type for one in rows) else ()


def write_referred_rows(message: Packed.References, first: int, rows: Sequence[ClientRows]) -> None:
    """Writes references to clients' rows. `first` is the index of the first client."""
    write_references(message, [cast(Reference, one.source) for one in rows])
    message.row.CopyFrom(rows[0].source.element_type.to_proto())
    message.first = first
    write_batchings(message, [one.batching for one in rows if one.batching is not None])


def read_referred_rows(message: Packed.References, member: Type, path: str) -> Column:
    """Returns a column of clients' rows, which are read when they are used.

    Args:
      message: The message.
      member: The expected type of a client's rows.
      path: The path of the value, for error messages.

    Raises:
      InvalidValueError: If the message is inconsistent.
      TypeMismatchError: If the rows do not match the expected type.
    """
    found = cast(ListColumn, read_references(message, type_from_proto(message.row), path))
    each = read_batchings(message.batching, len(found), "references", path) or itertools.repeat(None)
    rows = [ClientRows(cast(BlockSequence, one).source, how) for one, how in zip(found.values, each)]
    for index, one in enumerate(rows):
        one.check(member, f"{path}[client {message.first + index}]")
    return DeferredColumn(rows, member, f"{path}[client 0]", column_from_values, message.first)
