"""Defines segments, the memory beside a message: arrays are sent from where they are, and received in their place."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstack.errors import InvalidValueError

LARGE_BYTES = 16 * 1024
"""Arrays of at least this size travel beside the message. Below it a segment costs more than the copy it saves."""


class Rows:
    """Arrays of the same size that are sent one after the other.

    They are pickled as plain memory: NumPy's pickles take ten times as long for arrays of some kilobytes.

    Attributes:
      arrays: The arrays, contiguous, of one shape, and of one dtype that Python's buffer protocol supports.
      row_bytes: The size of each in bytes; at least 1.
    """

    __slots__ = ("arrays", "row_bytes")

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self.arrays = arrays
        self.row_bytes = arrays[0].nbytes

    def __len__(self) -> int:
        return len(self.arrays) * self.row_bytes

    def views(self) -> Iterator[memoryview]:
        """Yields the bytes of each array."""
        return (array.data.cast("B") for array in self.arrays)

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes."""
        return len(self)

    def copy(self) -> "Rows":
        """Returns a copy in memory of its own."""
        return Rows([array.copy() for array in self.arrays])

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., "Rows"], tuple[Any, ...]]:
        if protocol < 5:
            return Rows, (list(self.arrays),)
        first = self.arrays[0]
        return _pickled_rows, (first.dtype.str, first.shape, [pickle.PickleBuffer(array.data) for array in self.arrays])


def _pickled_rows(dtype: str, shape: Sequence[int], buffers: Sequence[Any]) -> Rows:
    """Returns rows as read-only views of unpickled buffers."""
    arrays = [np.frombuffer(memoryview(buffer).toreadonly(), dtype) for buffer in buffers]
    return Rows(arrays if len(shape) == 1 else [array.reshape(shape) for array in arrays])


Segment: TypeAlias = memoryview | Rows
# A segment that can be pickled and has `nbytes`.
Memory: TypeAlias = NDArray[Any] | Rows


def memory_of(segments: Iterable[Segment]) -> list[Memory]:
    """Returns segments in a form that engines can pickle, and whose receiver unpacks it without a copy."""
    return [segment if isinstance(segment, Rows) else np.frombuffer(segment, np.uint8) for segment in segments]


def joined(segments: Iterable[Segment], *before: bytes) -> bytes:
    """Returns the bytes of segments, one after the other, behind a prefix."""
    pieces: list[Any] = [*before]
    for segment in segments:
        # `join` reads arrays directly: a view of each would take time.
        pieces.extend(segment.arrays if isinstance(segment, Rows) else (segment,))
    return b"".join(pieces)


class SegmentReader:
    """Fills buffers with the data of a stream, in order.

    Args:
      buffers: The memory of the arrays that the header announced: writable bytes, one-dimensional and contiguous.

    Attributes:
      expected: The size of all buffers in bytes.
      received: How many bytes have been filled.
    """

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self.expected = sum(map(len, buffers))
        self.received = 0
        self._unfilled = iter([buffer for buffer in buffers if len(buffer)])
        self._buffer = memoryview(b"")

    @property
    def complete(self) -> bool:
        """Whether all buffers are full."""
        return self.received == self.expected

    @property
    def missing(self) -> int:
        """How many bytes are still to come."""
        return self.expected - self.received

    def feed(self, data: memoryview) -> None:
        """Takes the next bytes.

        Raises:
          InvalidValueError: If there are more than announced; then nothing is written.
        """
        if self.received + len(data) > self.expected:
            raise InvalidValueError(
                f"Expected {self.expected} bytes of data, as the header announced, found {self.received + len(data)} "
                "or more; the peer contradicts itself"
            )
        self.received += len(data)
        while len(data):
            if not len(self._buffer):
                self._buffer = next(self._unfilled)
            count = min(len(self._buffer), len(data))
            self._buffer[:count] = data[:count]
            self._buffer = self._buffer[count:]
            data = data[count:]

    def finish(self) -> None:
        """Checks at the end of the stream that all bytes have arrived.

        Raises:
          InvalidValueError: If some are missing.
        """
        if not self.complete:
            raise InvalidValueError(
                f"Expected {self.expected} bytes of data, as the header announced, found the end of the stream after "
                f"{self.received}; the peer gave up or contradicts itself"
            )

    def __repr__(self) -> str:
        return f"<SegmentReader {self.received} of {self.expected} bytes>"
