"""Cuts and joins blocks of elements to the size in which they travel."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

from fedstack.computations.codec.sequence_rows import Pieces
from fedstack.computations.types.language import StructType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.columns import Column, RowsColumn, StructColumn, concatenate
from fedstack.service.data.datasets.blocks import Blocks, dataset_scope, pieces, size_in

# The first block fits into one message; those after it grow, as the work of each call is the same.
_FIRST_BYTES = 1 << 20
_GROWTH = 4
# How long an element may wait for those that travel with it.
_SECONDS_TOGETHER = 0.005

# Some elements, and whether it is known that there are none after them.
Sized: TypeAlias = tuple[Column, bool]


def sized_blocks(blocks: Blocks, element: Type, most_bytes: int) -> Iterator[Sized]:
    """Yields the elements of blocks in blocks of about so many bytes; with fewer in them where making them takes long.

    Those before an error come out before it.

    Args:
      blocks: The elements.
      element: Their type.
      most_bytes: How many bytes of elements a block has at most, unless one element has more.
    """
    held: list[Column] = []
    held_bytes, begun = 0, dataset_scope().clock()
    bound, most_bytes = most_bytes, min(most_bytes, _FIRST_BYTES)
    failure: Exception | None = None
    bytes_of = size_in(element)
    while True:
        block = None
        try:
            block = next(blocks, None)
        except Exception as error:
            failure = error
        if block is None:
            break
        for piece, size in _cut(block, bytes_of(block), most_bytes):
            if held and (held_bytes + size > most_bytes or not _fits(held[0], piece)):
                yield _together(held, element), False
                held, held_bytes, begun = [], 0, dataset_scope().clock()
                most_bytes = min(bound, most_bytes * _GROWTH)
            held.append(piece)
            held_bytes += size
            if held_bytes >= most_bytes or dataset_scope().clock() - begun > _SECONDS_TOGETHER:
                yield _together(held, element), False
                held, held_bytes, begun = [], 0, dataset_scope().clock()
                most_bytes = min(bound, most_bytes * _GROWTH)
    if held:
        yield _together(held, element), failure is None
    if failure is not None:
        raise failure


def _fits(one: Column, other: Column) -> bool:
    """Returns whether two columns make one of the same kind."""
    if isinstance(one, StructColumn) and isinstance(other, StructColumn):
        return all(map(_fits, one.fields, other.fields))
    if isinstance(one, RowsColumn) and isinstance(other, RowsColumn):
        return one.shape[1:] == other.shape[1:]
    return type(one) is type(other)


def _together(columns: Sequence[Column], element: Type) -> Column:
    """Returns columns that fit as one to be packed, in which large arrays stay where they are."""
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], StructColumn):
        structs, members = cast("Sequence[StructColumn]", columns), enumerate(fields_of(cast(StructType, element)))
        fields = [_together([column.fields[i] for column in structs], t) for i, (_, t) in members]
        return StructColumn(tuple(fields), sum(map(len, structs)))
    if isinstance(columns[0], RowsColumn):
        return Pieces([column.values for column in cast("Sequence[RowsColumn]", columns)])
    return concatenate(columns, element)


def _cut(block: Column, size: int, most_bytes: int) -> Iterator[tuple[Column, int]]:
    """Yields the pieces of a block, and about how many bytes each has."""
    if size <= most_bytes:
        yield block, size
        return
    for piece in pieces(block, max(1, most_bytes * len(block) // size)):
        yield piece, size * len(piece) // len(block)
