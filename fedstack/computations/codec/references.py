"""Writes and reads references: sequences, and rows of clients, that the receiver reads from a data service itself."""

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

# Yields the elements of the sequence at an index of a group, some at a time: `ReferenceReader.blocks`.
ReadBlocks: TypeAlias = Callable[["ReferenceGroup", int], Iterator[Column]]


@attrs.frozen(eq=False)
class ReferenceGroup:
    """Parts of one source that were sent together, mostly in the order in which they will be read.

    Attributes:
      source: The source: the content of a `data` block.
      keys: The key of each part in the source.
      element: The type of their elements.
      read: Reads them; `None` to use the reader of the service that consumes them.
    """

    source: Any
    keys: Sequence[bytes]
    element: Type
    read: ReadBlocks | None = None


class Reference(HasBlocks):
    """A sequence that is a part of a source elsewhere.

    Attributes:
      group: The source, and the parts of it that were sent together.
      place: The index of this part.
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
        """The key of the part in the source."""
        return self.group.keys[self.place]

    def blocks(self) -> Iterator[Column]:
        """Yields the elements, some at a time.

        Raises:
          CarrierError: If this process works for others, and may not read data services for them.
        """
        scope = current_scope()
        read = scope.reads if scope.is_for_others else self.group.read
        if read is None:
            raise CarrierError(
                f"Expected elements, found a reference to those of a {self.group.source.TypeName()}, and no data "
                "service that this worker may read from; name it there: fedstack serve --data-service ADDRESS, "
                "ServerConfig.data_services, local_worker_pool(data_services=...)"
            )
        return read(self.group, self.place)

    def __len__(self) -> int:
        raise TypeError(f"Expected a sequence of known length, found {self!r}; iterate over it, or count as you go")

    def __repr__(self) -> str:
        return f"<Reference to {self.key!r}>"


def reference_of(payload: Payload) -> Reference | None:
    """Returns the reference that a payload is; `None` if it is none."""
    source = payload.source if isinstance(payload, BlockSequence) else None
    return source if isinstance(source, Reference) else None


def references_of(payloads: Sequence[Payload]) -> list[Reference]:
    """Returns the references among payloads."""
    return [reference for payload in payloads if (reference := reference_of(payload)) is not None]


def write_references(message: Packed.References, references: Sequence[Reference]) -> None:
    """Writes the sources of references, and their keys there."""
    places: dict[bytes, int] = {}
    of: list[int] = []
    for reference in references:
        source = reference.group.source
        place = places.setdefault(source.value, len(places))  # its value suffices, as all types have the same reader
        if place == len(message.source):
            message.source.append(source)
        of.append(place)
    message.key.extend(reference.key for reference in references)
    if len(places) > 1:
        message.of.extend(of)


def read_references(message: Packed.References, element: Type, path: str) -> Column:
    """Returns a column of sequences that are read when they are consumed.

    Raises:
      InvalidValueError: If the message contradicts itself.
    """
    keys, of = message.key, message.of
    if len(of) not in (0, len(keys)) or not message.source or any(place >= len(message.source) for place in of):
        raise InvalidValueError(
            f"Expected a source for each of {len(keys)} references, found {len(message.source)} sources and "
            f"{len(of)} indices of sources; at {path}"
        )
    groups = [ReferenceGroup(source, cast("list[bytes]", []), element) for source in message.source]
    found: list[Payload] = []
    for key, place in zip(keys, of or itertools.repeat(0)):
        group = groups[place]
        found.append(BlockSequence(Reference(group, len(group.keys))))
        cast("list[bytes]", group.keys).append(key)
    return ListColumn(found)


def referred_rows(column: DeferredColumn) -> Sequence[ClientRows]:
    """Returns the references of a column, if all of it are references to rows of one type; else none."""
    rows = [one for one in column.values if isinstance(one, ClientRows) and isinstance(one.source, Reference)]
    if not column.is_whole or len(rows) < len(column) or len({one.batching is None for one in rows}) > 1:
        return ()
    first = rows[0].source.element_type if rows else None
    return rows if all(first == one.source.element_type for one in rows) else ()


def write_referred_rows(message: Packed.References, first: int, rows: Sequence[ClientRows]) -> None:
    """Writes references to rows; `first` is the index of the first client."""
    write_references(message, [cast(Reference, one.source) for one in rows])
    message.row.CopyFrom(rows[0].source.element_type.to_proto())
    message.first = first
    write_batchings(message, [one.batching for one in rows if one.batching is not None])


def read_referred_rows(message: Packed.References, member: Type, path: str) -> Column:
    """Returns a column of rows that are read when they are used.

    Raises:
      InvalidValueError: If the message contradicts itself.
      TypeMismatchError: If the rows do not fit.
    """
    found = cast(ListColumn, read_references(message, type_from_proto(message.row), path))
    each = read_batchings(message.batching, len(found), "references", path) or itertools.repeat(None)
    rows = [ClientRows(cast(BlockSequence, one).source, how) for one, how in zip(found.values, each)]
    for index, one in enumerate(rows):
        one.check(member, f"{path}[client {message.first + index}]")
    return DeferredColumn(rows, member, f"{path}[client 0]", column_from_values, message.first)
