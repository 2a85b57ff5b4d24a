"""The memory beside a message: arrays that are sent as they lie there, and memory that arrays are received in."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedstack.errors import InvalidValueError

LARGE_BYTES = 16 * 1024
"""Arrays of at least this many bytes travel beside the message. Below, a segment costs more than the copy it saves."""


class Rows:
    """Arrays of the same size that are to be sent one after the other.

    They can be pickled, as bare memory: NumPy's own way takes ten times as long for arrays of some kilobytes.

    Attributes:
      arrays: The arrays, contiguous, of one shape and of one dtype that Python's buffers know.
      row_bytes: The bytes of each; at least 1.
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
        """How many bytes the arrays have."""
        return len(self)

    def copy(self) -> "Rows":
        """Returns the same in memory of its own."""
        return Rows([array.copy() for array in self.arrays])

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., "Rows"], tuple[Any, ...]]:
        if protocol < 5:
            return Rows, (list(self.arrays),)
        first = self.arrays[0]
        return _pickled_rows, (first.dtype.str, first.shape, [pickle.PickleBuffer(array.data) for array in self.arrays])


def _pickled_rows(dtype: str, shape: Sequence[int], buffers: Sequence[Any]) -> Rows:
    """Returns rows over memory that is there, which must not be written to."""
    arrays = [np.frombuffer(memoryview(buffer).toreadonly(), dtype) for buffer in buffers]
    return Rows(arrays if len(shape) == 1 else [array.reshape(shape) for array in arrays])


Segment: TypeAlias = memoryview | Rows
# The same as what can be pickled, and says how many bytes it has.
Memory: TypeAlias = NDArray[Any] | Rows


def memory_of(segments: Iterable[Segment]) -> list[Memory]:
    """Returns the memory of segments as what can be pickled: what an engine takes, which gives its receiver memory.

    It comes as memory that is filled already, as frames of gRPC do, and is unpacked without a copy.
    """
    return [segment if isinstance(segment, Rows) else np.frombuffer(segment, np.uint8) for segment in segments]


def joined(segments: Iterable[Segment], *before: bytes) -> bytes:
    """Returns the bytes of segments, one after the other, and what comes before them."""
    pieces: list[Any] = [*before]
    for segment in segments:
        # `join` reads arrays as they are: a view of each would take time.
        pieces.extend(segment.arrays if isinstance(segment, Rows) else (segment,))
    return b"".join(pieces)


class SegmentReader:
    """Fills buffers with the data of a stream, in order.

    Args:
      buffers: Writable bytes, one-dimensional and contiguous: the memory of the arrays that the header announced.

    Attributes:
      expected: How many bytes the buffers take.
      received: How many they have got.
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
          InvalidValueError: If there are more of them than were announced; nothing is written then.
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
        """Checks at the end of the stream that all has come.

        Raises:
          InvalidValueError: If not.
        """
        if not self.complete:
            raise InvalidValueError(
                f"Expected {self.expected} bytes of data, as the header announced, found the end of the stream after "
                f"{self.received}; the peer gave up, or contradicts itself"
            )

    def __repr__(self) -> str:
        return f"<SegmentReader {self.received} of {self.expected} bytes>"
