"""Defines segments, the memory that accompanies a message, so that arrays are sent and received without a copy."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstack.errors import InvalidValueError

LARGE_BYTES = 16 * 1024
"""The minimum size of arrays that are sent as segments. A smaller segment would cost more than the copy it avoids."""
# The size of the largest block of freed memory that glibc keeps, minus the overhead of glibc.
_KEPT_BYTES = (32 << 20) - (64 << 10)


class Rows:
    """A series of arrays of equal size that are sent one after another.

    Rows are pickled as plain memory, because NumPy's own pickling takes ten times as long for arrays of a few
    kilobytes.

    Attributes:
      arrays: The contiguous arrays. They have the same shape and the same dtype, and the dtype is one that Python's
        buffer protocol supports.
      row_bytes: The size of each array in bytes; at least 1.
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
        """Returns rows whose arrays are copies of these arrays."""
        return Rows([array.copy() for array in self.arrays])

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., "Rows"], tuple[Any, ...]]:
        if protocol < 5:
            return Rows, (list(self.arrays),)
        first = self.arrays[0]
        return _pickled_rows, (first.dtype.str, first.shape, [pickle.PickleBuffer(array.data) for array in self.arrays])


def _pickled_rows(dtype: str, shape: Sequence[int], buffers: Sequence[Any]) -> Rows:
    """Returns rows whose arrays are read-only views of unpickled buffers."""
    arrays = [np.frombuffer(memoryview(buffer).toreadonly(), dtype) for buffer in buffers]
    return Rows(arrays if len(shape) == 1 else [array.reshape(shape) for array in arrays])


Segment: TypeAlias = memoryview | Rows
# A segment in a form that can be pickled and has `nbytes`.
Memory: TypeAlias = NDArray[Any] | Rows


def memory_of(segments: Iterable[Segment]) -> list[Memory]:
    """Returns segments in a form that engines can pickle and that the receiver can unpickle without a copy."""
    return [segment if isinstance(segment, Rows) else np.frombuffer(segment, np.uint8) for segment in segments]


def joined(segments: Iterable[Segment], *before: bytes) -> bytes:
    """Returns the concatenated bytes of segments, preceded by the bytes `before`."""
    pieces: list[Any] = [*before]
    for segment in segments:
        # `join` reads arrays directly, which is faster than a view of each array.
        pieces.extend(segment.arrays if isinstance(segment, Rows) else (segment,))
    return b"".join(pieces)


class SegmentReader:
    """Fills buffers, one after another, with the data of a stream.

    Args:
      buffers: The memory of the arrays that the header announced, as writable one-dimensional contiguous bytes.

    Attributes:
      expected: The total size of all buffers in bytes.
      received: The number of bytes that have been received.
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
        """The number of bytes that have not been received yet."""
        return self.expected - self.received

    def feed(self, data: memoryview) -> None:
        """Writes the next bytes of the stream into the buffers.

        Raises:
          InvalidValueError: If the stream has more bytes than the header announced. In this case, no byte of `data` is
            written.
        """
        for buffer in self.take(len(data)):
            buffer[:] = data[: len(buffer)]
            data = data[len(buffer) :]

    def take(self, size: int) -> list[memoryview]:
        """Returns the memory for the next bytes of the stream, to which the caller writes them.

        Raises:
          InvalidValueError: If the stream has more bytes than the header announced.
        """
        if self.received + size > self.expected:
            raise InvalidValueError(
                f"Expected {self.expected} bytes of data, as the header announced, found at least "
                f"{self.received + size}; check that the peer runs a compatible version of fedstack"
            )
        self.received += size
        taken: list[memoryview] = []
        while size:
            if not len(self._buffer):
                self._buffer = next(self._unfilled)
            count = min(len(self._buffer), size)
            taken.append(self._buffer[:count])
            self._buffer = self._buffer[count:]
            size -= count
        return taken

    def finish(self) -> None:
        """Checks at the end of the stream that all announced bytes have been received.

        Raises:
          InvalidValueError: If bytes are missing.
        """
        if not self.complete:
            raise InvalidValueError(
                f"The stream ended after {self.received} of the {self.expected} bytes that the header announced; "
                "check whether the peer stopped while it was sending"
            )

    def __repr__(self) -> str:
        return f"<SegmentReader {self.received} of {self.expected} bytes>"


def keep_freed_memory() -> None:
    """Prevents glibc from returning received memory to the system and requesting it again for what is received next.

    Requesting memory takes longer than filling it. The size of the largest piece of memory that has been freed
    determines the amount of memory that glibc keeps.
    """
    np.empty(_KEPT_BYTES, np.uint8)
