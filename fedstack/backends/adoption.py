"""Hands arrays on to another process and takes them there as they are, where something else than a stream carries them.

An engine that pickles, or has a store of objects, gives the receiver memory that is filled already. `arrays_of` makes
what such an engine takes of the segments of a message, and an `AdoptingUnpacker` makes values of it without a copy.
"""

import math
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column
from fedstack.computations.values.deferred_column import DeferredColumn
from fedstack.errors import InvalidValueError
from fedstack.proto.extensions_pb2 import Packed
from fedstack.transport.wire.segments import Rows, Segment
from fedstack.transport.wire.unpacking import MOST_RESULT_BYTES, Unpacker


def arrays_of(segments: Iterable[Segment]) -> list[NDArray[Any]]:
    """Returns the memory of segments as arrays, which can be pickled."""
    arrays: list[NDArray[Any]] = []
    for segment in segments:
        arrays.extend(segment.arrays if isinstance(segment, Rows) else (np.frombuffer(segment, np.uint8),))
    return arrays


class AdoptingUnpacker(Unpacker):
    """Unpacks payloads whose bytes are there: its arrays are read-only views of what came.

    Args:
      arrays: What `arrays_of` returned on the other side; among them columns of values that are read here.
      clients: The number of clients that columns must have; `None` for any.
    """

    def __init__(self, arrays: Iterable[NDArray[Any] | DeferredColumn], clients: int | None = None) -> None:
        super().__init__(max_bytes=MOST_RESULT_BYTES, clients=clients)
        self._came: deque[Any] = deque(arrays)

    def _column_of(self, kind: str | None, proto: Packed, member: Type, path: str) -> Column | None:
        if kind == "references" and self._came and isinstance(self._came[0], DeferredColumn):
            column: DeferredColumn = self._came.popleft()
            self._size(len(column), path)
            return column
        return super()._column_of(kind, proto, member, path)

    def _is_by_row(self, row_bytes: int) -> bool:
        return row_bytes > 0 and bool(self._came) and not self._in_sequence and self._came[0].nbytes == row_bytes

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
            piece = self._came.popleft().reshape(-1).view(np.uint8)
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
