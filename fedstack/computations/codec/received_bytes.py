"""Reads arrays from the bytes that follow a message."""

import math
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.values.deferred_column import DeferredColumn
from fedstack.errors import InvalidValueError
from fedstack.foundations.segments import Memory, Rows


class ReceivedBytes:
    """Reads arrays from bytes that have already been received, in pieces. A piece can also be a column.

    Args:
      pieces: The pieces, in the order in which they are read.
    """

    def __init__(self, pieces: Iterable[Memory | DeferredColumn]) -> None:
        self._pieces: deque[Any] = deque(pieces)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> NDArray[Any]:
        """Returns the next array. The array is a view, unless its bytes are misaligned or in several pieces."""
        array = self._taken(math.prod(shape) * dtype.itemsize, path).view(dtype).reshape(shape)
        return array if sys.byteorder == "little" and array.flags.aligned else array.copy()

    def _taken(self, size: int, path: str) -> NDArray[np.uint8]:
        """Returns the next bytes, as a copy if they are in several pieces."""
        pieces: list[NDArray[np.uint8]] = []
        while size:
            if not self._pieces:
                raise InvalidValueError(
                    f"Expected {size} more bytes of an array at {path}, found the end of the data; send all bytes "
                    "that the message announces"
                )
            piece = self._pieces.popleft()
            if isinstance(piece, Rows):
                self._pieces.extendleft(reversed(piece.arrays))
                continue
            piece = piece.reshape(-1).view(np.uint8)
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def has_next(self, size: int) -> bool:
        """Returns whether the next piece, or each of its rows, has `size` bytes."""
        first = self._pieces[0] if self._pieces else None
        return first.row_bytes == size if isinstance(first, Rows) else getattr(first, "nbytes", 0) == size

    def rows(self, count: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Sequence[NDArray[Any]] | None:
        """Removes and returns the next rows if they can be passed to clients without conversion, otherwise `None`."""
        found = self._pieces[0] if self._pieces else None
        if not isinstance(found, Rows) or len(found.arrays) != count or sys.byteorder != "little":
            return None
        first = found.arrays[0]
        is_ready = first.dtype == dtype and first.shape == shape
        if not is_ready or not all(array.flags.aligned and not array.flags.writeable for array in found.arrays):
            return None
        self._pieces.popleft()
        return found.arrays

    def column(self) -> DeferredColumn | None:
        """Removes and returns the next piece if it is a column of values that this process reads, otherwise `None`."""
        is_next = bool(self._pieces) and isinstance(self._pieces[0], DeferredColumn)
        return self._pieces.popleft() if is_next else None

    def check_end(self) -> None:
        """Checks that all bytes have been used."""
        if self._pieces:
            left = sum(getattr(piece, "nbytes", 0) for piece in self._pieces)
            raise InvalidValueError(
                f"Expected no more bytes of array data, found {left} more bytes; send only the bytes that the "
                "message announces"
            )
