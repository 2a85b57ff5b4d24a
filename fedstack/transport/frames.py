"""Frames the messages of a stream: a header, the bytes of arrays in chunks, heartbeats.

Data frames are written and read by hand, as protobuf would, because protobuf copies bytes on every step: on the way out
they are copied once, into the message that gRPC gets, and on the way in once, from it into the array.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
from google.protobuf.message import DecodeError, Message

from fedstack.computations.number_checks import check_whole_number
from fedstack.errors import InvalidValueError
from fedstack.proto import extensions_pb2

# gRPC streams fastest in messages of 1 to 4 MiB, as measured; it holds several at a time, on both sides.
CHUNK_BYTES = 1024 * 1024
_MOST_BYTES = 1 << 30  # a message has at most 2 GiB


def _at_least(least: int) -> Callable[[object, "attrs.Attribute[int]", int], None]:
    def check(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
        check_whole_number(attribute.name, value, least, _MOST_BYTES)

    return check


@attrs.frozen
class Chunking:
    """What travels in chunks, and how large they are.

    Attributes:
      large_bytes: From which size on an array travels beside its message.
      chunk_bytes: The most bytes of arrays in one frame.
    """

    large_bytes: int = attrs.field(default=16 * 1024, validator=_at_least(0))
    chunk_bytes: int = attrs.field(default=CHUNK_BYTES, validator=_at_least(1))


_HEADER_TAG = bytes([extensions_pb2.Frame.HEADER_FIELD_NUMBER << 3 | 2])  # 2: a length and so many bytes
_DATA_TAG = bytes([extensions_pb2.Frame.DATA_FIELD_NUMBER << 3 | 2])
_MAX_LENGTH_BYTES = 10


@attrs.frozen
class Header:
    """The message that the method names.

    Attributes:
      content: The message, serialized.
    """

    content: bytes


@attrs.frozen
class Data:
    """The next bytes of the arrays.

    Attributes:
      data: The bytes, as a view of the frame.
    """

    data: memoryview


@attrs.frozen
class Heartbeat:
    """A sign of life, with numbers of clients of the phase that runs."""

    done: int = 0
    running: int = 0
    failed: int = 0


def header_frame(message: Message) -> bytes:
    """Returns the frame that begins a stream."""
    content = message.SerializeToString()
    return b"".join((_HEADER_TAG, _length(len(content)), content))


def heartbeat_frame(done: int = 0, running: int = 0, failed: int = 0) -> bytes:
    """Returns the frame that says that the server is at work, and with how many clients."""
    frame = extensions_pb2.Frame(heartbeat=extensions_pb2.Heartbeat(done=done, running=running, failed=failed))
    return frame.SerializeToString()


def data_frames(segments: Iterable[memoryview], chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yields the frames that carry the bytes of arrays, each made when it is asked for.

    Args:
      segments: The bytes, one-dimensional and contiguous. Small ones share a frame, large ones are cut.
      chunk_bytes: How many bytes a frame carries; the last one has what is left.
    """
    if chunk_bytes < 1:
        raise InvalidValueError(f"Expected chunks of at least 1 byte, found {chunk_bytes}")
    pieces: list[memoryview] = []
    room = chunk_bytes
    for segment in segments:
        start = 0
        while start < len(segment):
            piece = segment[start : start + room]
            pieces.append(piece)
            start += len(piece)
            room -= len(piece)
            if room == 0:
                yield _data_frame(pieces, chunk_bytes)
                pieces = []
                room = chunk_bytes
    if pieces:
        yield _data_frame(pieces, chunk_bytes - room)


def parse_frame(frame: bytes) -> Header | Data | Heartbeat:
    """Reads a frame. Data is a view of it, not a copy.

    Raises:
      InvalidValueError: If it is none.
    """
    start = _start_of_data(frame)
    if start is not None:
        return Data(memoryview(frame)[start:])
    try:
        parsed = extensions_pb2.Frame.FromString(frame)
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a frame with a header, data or a heartbeat, found {len(frame)} bytes that are none ({error}); "
            "do both sides speak the same protocol?"
        ) from error
    kind = parsed.WhichOneof("kind")
    if kind == "header":
        return Header(parsed.header)
    if kind == "data":
        return Data(memoryview(parsed.data))
    if kind == "heartbeat":
        return Heartbeat(parsed.heartbeat.done, parsed.heartbeat.running, parsed.heartbeat.failed)
    raise InvalidValueError(
        f"Expected a frame with a header, data or a heartbeat, found {len(frame)} bytes without; the peer may be newer"
    )


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


def _data_frame(pieces: Sequence[memoryview], size: int) -> bytes:
    return b"".join((_DATA_TAG, _length(size), *pieces))


def _length(size: int) -> bytes:
    """Writes a length as protobuf's varint: seven bits a byte, the lowest first, all bytes but the last marked."""
    encoded = bytearray()
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


def _start_of_data(frame: bytes) -> int | None:
    """Returns where the bytes begin in a frame that is data and nothing else, and `None` for any other."""
    if not frame.startswith(_DATA_TAG):
        return None
    size = 0
    for index, byte in enumerate(frame[1 : 1 + _MAX_LENGTH_BYTES]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            start = index + 2
            return start if start + size == len(frame) else None
    return None
