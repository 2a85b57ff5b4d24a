"""Orders what a connection sends: frames first, and large parcels in turns, a chunk of each.

Memory is sent from where it is, without a copy. A small call therefore waits for at most one chunk of a large parcel.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from fedstack.foundations.memory_files import SealedFile
from fedstack.foundations.segments import Rows, Segment
from fedstack.transport.stream.layout import MOST_DATA_BYTES, Buffer, data_header

# The system sends at most 1024 buffers at once.
_MOST_BUFFERS = 512
_BATCH_BYTES = MOST_DATA_BYTES
# Smaller rows are joined, which is faster than sending several buffers.
_JOINED_ROW_BYTES = 8 << 10
_JOINED_BYTES = 256 << 10

OnTaken = Callable[[], object]


class OutgoingData:
    """The segments of a large parcel, of which the receiver grants a part at a time.

    Args:
      exchange: The exchange.
      segments: The segments.
      size: The size of all segments.
      taken: Called when the socket has taken the last byte.
      file: A file that is sent with the first frame of the parcel, if there is any.

    Attributes:
      granted: The number of bytes that may be sent now.
      left: The number of bytes that have not been sent.
    """

    __slots__ = ("_rest", "_views", "exchange", "file", "granted", "left", "taken")

    def __init__(
        self, exchange: int, segments: Sequence[Segment], size: int, taken: OnTaken, file: SealedFile | None = None
    ) -> None:
        self.exchange = exchange
        self.file = file
        self.granted = 0
        self.left = size
        self.taken = taken
        self._views = _views_of(segments)
        self._rest = memoryview(b"")

    def take(self) -> tuple[list[Buffer], int]:
        """Returns the buffers of the next data frame without its header, and their size. Granted bytes must be left."""
        room = size = min(self.granted, self.left, MOST_DATA_BYTES)
        buffers: list[Buffer] = []
        while room and len(buffers) < _MOST_BUFFERS:
            view = self._rest if len(self._rest) else next(self._views)
            part, self._rest = view[:room], view[room:]
            if len(part):
                buffers.append(part)
                room -= len(part)
        size -= room
        self.granted -= size
        self.left -= size
        return buffers, size

    def skip(self, count: int) -> None:
        """Drops the next bytes, because the receiver has them. No granted bytes may be left."""
        self.left -= count
        while count:
            view = self._rest if len(self._rest) else next(self._views)
            count, self._rest = max(0, count - len(view)), view[count:]
        if not self.left:
            self.taken()


def _views_of(segments: Sequence[Segment]) -> Iterator[memoryview]:
    for segment in segments:
        if not isinstance(segment, Rows):
            yield segment
        elif segment.row_bytes >= _JOINED_ROW_BYTES:
            yield from segment.views()
        else:
            views, at_once = list(segment.views()), _JOINED_BYTES // segment.row_bytes
            for start in range(0, len(views), at_once):
                yield memoryview(b"".join(views[start : start + at_once]))


class QueuedFrame:
    """A frame that waits to be sent.

    Attributes:
      buffers: The parts of the frame; empty if it was withdrawn.
      taken: Called when the socket has taken the last byte.
      has_begun: Whether the socket may have taken some of it.
      file: A file that is sent with the first byte, if there is any.
    """

    __slots__ = ("buffers", "file", "has_begun", "taken")

    def __init__(self, buffers: Sequence[Buffer], taken: OnTaken | None, file: SealedFile | None = None) -> None:
        self.file = file
        self.buffers = buffers
        self.taken = taken
        self.has_begun = False


class SendQueue:
    """What a connection has to send. The caller sends `buffers()`, and calls `sent()` with the number of bytes sent.

    Attributes:
      frame_bytes: The size of the frames that wait, without data.
      file: The file to send together with the first byte of `buffers()`, if there is any.
    """

    def __init__(self) -> None:
        self.frame_bytes = 0
        self._frames: deque[QueuedFrame] = deque()
        self._data: deque[OutgoingData] = deque()  # with granted bytes
        self._batch: deque[tuple[Buffer, OnTaken | None]] = deque()
        self.file: SealedFile | None = None

    def __bool__(self) -> bool:
        return bool(self._batch or self._frames or self._data)

    def add(self, frame: bytes) -> None:
        """Adds a frame."""
        self._frames.append(QueuedFrame([frame], None))
        self.frame_bytes += len(frame)

    def add_parts(
        self, buffers: Sequence[Buffer], size: int, taken: OnTaken | None, file: SealedFile | None = None
    ) -> "QueuedFrame":
        """Adds a frame that consists of several buffers, and returns it.

        Args:
          buffers: The buffers.
          size: The size of all buffers.
          taken: Called when the socket has taken the last byte.
          file: A file to send with the frame, if there is any.
        """
        frame = QueuedFrame(buffers, taken, file)
        self._frames.append(frame)
        self.frame_bytes += size
        return frame

    def withdraw(self, frame: "QueuedFrame", size: int) -> bool:
        """Removes a frame of which no byte has been sent. What is left of another one no longer refers to memory.

        Returns:
          Whether the frame was removed.
        """
        if frame.has_begun:
            self._own_batch()
            return False
        frame.buffers, frame.file = (), None
        self.frame_bytes -= size
        return True

    def _own_batch(self) -> None:
        """Copies what is being sent, so that its owners may change their memory."""
        self._batch = deque((b if isinstance(b, bytes) else bytes(b), taken) for b, taken in self._batch)

    def grant(self, data: OutgoingData, count: int) -> None:
        """Lets `count` more bytes of data be sent."""
        if not data.granted:
            self._data.append(data)
        data.granted += count

    def drop(self, data: OutgoingData) -> None:
        """Removes data that are no longer wanted. A frame of them that has begun is sent to its end."""
        if data.granted:
            self._data.remove(data)
            data.granted = 0
        self._own_batch()

    def buffers(self) -> list[Buffer]:
        """Returns the next buffers to send; empty if there are none."""
        if not self._batch:
            self._fill()
        return [buffer for buffer, _ in self._batch]

    def _fill(self) -> None:
        size = 0
        while self._frames and len(self._batch) < _MOST_BUFFERS and size < _BATCH_BYTES:
            if self._frames[0].file is not None and self._batch:
                break  # the file comes with the first byte of a batch
            frame = self._frames.popleft()
            frame.has_begun = True
            if frame.file is not None:
                self.file, frame.file = frame.file, None
            for buffer in frame.buffers:
                self._batch.append((buffer, None))
                size += len(buffer)
            if frame.taken is not None and frame.buffers:
                self._batch[-1] = self._batch[-1][0], frame.taken
        self.frame_bytes -= size
        if self._data and not self._frames:
            data = self._data.popleft()
            buffers, count = data.take()
            if data.granted:
                self._data.append(data)
            self._batch.append((data_header(data.exchange, count), None))
            self._batch.extend((buffer, None) for buffer in buffers)
            if not data.left:
                self._batch[-1] = buffers[-1], data.taken

    def sent(self, count: int) -> None:
        """Removes the first `count` bytes of `buffers()`."""
        batch = self._batch
        if count:
            self.file = None
        while batch:
            buffer, taken = batch[0]
            size = len(buffer)
            if count < size:
                if count:
                    batch[0] = memoryview(buffer)[count:], taken
                return
            batch.popleft()
            count -= size
            if taken is not None:
                taken()

    def clear(self) -> None:
        """Drops everything."""
        self._frames.clear()
        self._data.clear()
        self._batch.clear()
        self.file = None
        self.frame_bytes = 0

    def __repr__(self) -> str:
        return f"<SendQueue, {self.frame_bytes} bytes of frames, {len(self._data)} large parcels>"
