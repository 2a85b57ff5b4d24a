"""Takes arrays as they have come from another process, where the memory that they came in can be theirs.

An engine that pickles, or has a store of objects, gives the receiver memory that is filled already, and so does gRPC
with each frame. `memory_of` makes what such an engine takes of the segments of a message, and an `AdoptingUnpacker`
makes values of it without a copy.
"""

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.arrays import dtype_of_number
from fedstack.computations.codec.segments import Rows, Segment
from fedstack.computations.codec.unpacking import MOST_RESULT_BYTES, Unpacker
from fedstack.computations.types.language import TensorType, Type
from fedstack.computations.values.columns import Column, ListColumn
from fedstack.computations.values.deferred_column import DeferredColumn
from fedstack.errors import InvalidValueError
from fedstack.proto.extensions_pb2 import Packed

# What can be pickled, and says how many bytes it has.
Memory: TypeAlias = NDArray[Any] | Rows


def memory_of(segments: Iterable[Segment]) -> list[Memory]:
    """Returns the memory of segments as what can be pickled."""
    return [segment if isinstance(segment, Rows) else np.frombuffer(segment, np.uint8) for segment in segments]


def announced_bytes(packed: Packed) -> int:
    """Returns how many bytes come beside a message, if it says so rightly."""
    kind = packed.WhichOneof("kind")
    if kind in ("raw", "rows"):
        raw = packed.raw if kind == "raw" else packed.rows
        dtype = dtype_of_number(raw.dtype)
        return 0 if dtype is None else max(0, math.prod(raw.dim)) * dtype.itemsize
    members = _MEMBERS.get(kind or "")
    return 0 if members is None else sum(map(announced_bytes, members(packed)))


_MEMBERS: Mapping[str, Callable[[Packed], Iterable[Packed]]] = MappingProxyType(
    {
        "struct": lambda packed: packed.struct.member,
        "clients": lambda packed: packed.clients.member,
        "same": lambda packed: (packed.same.member,),
        "fields": lambda packed: packed.fields.column,
        "sequences": lambda packed: (packed.sequences.row,),
    }
)


class AdoptingUnpacker(Unpacker):
    """Unpacks payloads whose bytes are there: its arrays are read-only views of what came.

    Args:
      came: What `memory_of` returned on the other side, or frames; among it columns of values that are read here.
      clients: The number of clients that columns must have; `None` for any.
      for_results: Whether large rows are arrays of their own, of which none is copied that came in one piece.
    """

    def __init__(
        self,
        came: Iterable[Memory | DeferredColumn],
        clients: int | None = None,
        *,
        for_results: bool = False,
    ) -> None:
        super().__init__(max_bytes=MOST_RESULT_BYTES, clients=clients, for_results=for_results)
        self._came: deque[Any] = deque(came)

    def _column_of(self, kind: str | None, proto: Packed, member: Type, path: str) -> Column | None:
        if kind == "references" and self._came and isinstance(self._came[0], DeferredColumn):
            column: DeferredColumn = self._came.popleft()
            self._size(len(column), path)
            return column
        return super()._column_of(kind, proto, member, path)

    def _is_by_row(self, row_bytes: int) -> bool:
        if super()._is_by_row(row_bytes):
            return True
        if not row_bytes or not self._came or self._in_sequence:
            return False
        first = self._came[0]
        return (first.row_bytes if isinstance(first, Rows) else first.nbytes) == row_bytes

    def _own_rows(self, shape: tuple[int, ...], member: TensorType, path: str) -> Column:
        rows = self._came[0] if self._came else None
        if isinstance(rows, Rows) and len(rows.arrays) == shape[0] and _are_ready(rows, shape[1:], member):
            self._checked_rows(shape, member, path)
            self._came.popleft()
            return ListColumn(rows.arrays)
        return super()._own_rows(shape, member, path)

    def _buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> NDArray[Any]:
        size = math.prod(shape) * dtype.itemsize
        array = self._take(size, path).view(dtype).reshape(shape) if size else np.empty(shape, dtype)
        if sys.byteorder != "little" or not array.flags.aligned:
            array = array.copy()
        if sys.byteorder != "little" or dtype == np.bool_:
            self._arrays.append(array)  # which `finish` looks at
        view = array.view()
        view.setflags(write=False)
        return view

    def _take(self, size: int, path: str) -> NDArray[np.uint8]:
        """Returns the next bytes: those of one array as they are, those of several as a copy."""
        pieces: list[NDArray[np.uint8]] = []
        while size:
            if not self._came:
                raise InvalidValueError(f"Expected {size} more bytes of an array, found no more; at {path}")
            piece = self._came.popleft()
            if isinstance(piece, Rows):
                self._came.extendleft(reversed(piece.arrays))
                continue
            piece = piece.reshape(-1).view(np.uint8)
            if len(piece) > size:
                self._came.appendleft(piece[size:])
                piece = piece[:size]
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def finish(self) -> None:
        if self._came:
            raise InvalidValueError(f"Expected no more bytes of arrays, found {sum(a.nbytes for a in self._came)}")
        super().finish()


def _are_ready(rows: Rows, shape: Sequence[int], member: TensorType) -> bool:
    """Returns whether rows are arrays as a client may get them: of the shape and dtype, aligned and read-only."""
    first = rows.arrays[0]
    if first.dtype != member.dtype or first.shape != shape or sys.byteorder != "little":
        return False
    return all(array.flags.aligned and not array.flags.writeable for array in rows.arrays)
