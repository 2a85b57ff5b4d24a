"""Encodes and decodes the frames of a stream: a header, the bytes of arrays in chunks, and heartbeats.

Data frames are encoded and decoded without protobuf, in protobuf's format, because protobuf copies bytes at every step.
The sender copies the bytes of an array once, into the message for gRPC. The receiver copies them once, from the message
into the array.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, cast

import attrs
from google.protobuf.message import DecodeError

from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import printable, shortened
from fedstack.foundations.number_checks import whole_number_validator
from fedstack.foundations.segments import LARGE_BYTES, Rows, Segment
from fedstack.proto import extensions_pb2

# In measurements, gRPC streams fastest with messages of 1 to 4 MiB. Sender and receiver buffer several messages.
CHUNK_BYTES = 1024 * 1024
_MOST_BYTES = 1 << 30  # a message has at most 2 GiB
_MAX_NAME_BYTES = 200
_MOST_WORK = 100  # the maximum number of functions to read from a heartbeat, in case a peer reports too many


@attrs.frozen
class Chunking:
    """Size thresholds for sending arrays in chunks.

    Attributes:
      large_bytes: Arrays of at least this size are sent separately from their message.
      chunk_bytes: The maximum number of array bytes in one frame.
    """

    large_bytes: int = attrs.field(default=LARGE_BYTES, validator=whole_number_validator(0, _MOST_BYTES))
    chunk_bytes: int = attrs.field(default=CHUNK_BYTES, validator=whole_number_validator(1, _MOST_BYTES))


_HEADER_TAG = bytes([extensions_pb2.Frame.HEADER_FIELD_NUMBER << 3 | 2])  # 2: length-delimited
_DATA_TAG = bytes([extensions_pb2.Frame.DATA_FIELD_NUMBER << 3 | 2])
_MAX_LENGTH_BYTES = 10
# In frames of at least this size, the data start at a multiple of eight bytes, so that arrays can be used without a
# copy. To align the data, the frame starts with an empty data field; protobuf uses the last occurrence of a field.
# protobuf's C++ parser would not accept a longer encoding of the length instead.
_ALIGNED_BYTES, _ALIGNED_LENGTH = 16 << 10, 5
_ALIGNED_TAG = _DATA_TAG + b"\0" + _DATA_TAG


# Takes where a part of the segments starts, and its size. Returns read-only memory with it, or `None`.
Mapped: TypeAlias = Callable[[int, int], "memoryview | None"]


@attrs.frozen
class Header:
    """The header of a stream: a message of the type that the method defines.

    Attributes:
      content: The serialized message.
      mapped: Returns memory that already has a part of the data that follow; `None` if there is no such memory.
    """

    content: bytes
    mapped: Mapped | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Data:
    """A chunk of the bytes of arrays.

    Attributes:
      data: The bytes, as a view of the frame.
    """

    data: memoryview


@attrs.frozen
class RunningClients:
    """A function that is running, or that was running when the peer last reported.

    Attributes:
      first_client: The index of the first client in the block, counted over the whole federation.
      clients: The number of clients in the block, which run sequentially; 0 for work on the server.
      function: The name of the function; if several functions run sequentially, their names.
      seconds: The time in seconds since the function started.
      client: The index of the client that is running; `None` if it is not known.
    """

    first_client: int
    clients: int
    function: str
    seconds: float
    client: int | None = None

    def write(self, message: extensions_pb2.Work) -> None:
        """Writes the fields to a message."""
        message.first_client, message.clients = self.first_client, self.clients
        message.function, message.seconds = _named(self.function), self.seconds
        if self.client is not None:
            message.client = self.client

    @classmethod
    def read(cls, message: extensions_pb2.Work) -> "RunningClients":
        """Reads the fields from a message."""
        client = message.client if message.HasField("client") else None
        return cls(message.first_client, message.clients, message.function, message.seconds, client)


@attrs.frozen
class Heartbeat:
    """A message that shows that a peer is alive.

    Attributes:
      done: The number of clients of the running phase that are done.
      running: The number of clients that are running.
      failed: The number of clients that have failed.
      work: The running functions, longest running first.
    """

    done: int = 0
    running: int = 0
    failed: int = 0
    work: tuple[RunningClients, ...] = ()


def _named(name: str) -> str:
    """Returns the name of a function, escaped and shortened for use in any message."""
    return shortened(printable(name[:_MAX_NAME_BYTES]), _MAX_NAME_BYTES)


def header_frame(content: bytes) -> bytes:
    """Returns the first frame of a stream, which contains a serialized message."""
    return b"".join((_HEADER_TAG, length_of(len(content)), content))


def heartbeat_frame(done: int = 0, running: int = 0, failed: int = 0, work: Iterable[RunningClients] = ()) -> bytes:
    """Encodes a heartbeat; see `Heartbeat` for the fields."""
    return extensions_pb2.Frame(heartbeat=_heartbeat_message(done, running, failed, work)).SerializeToString()


def heartbeat_content(beat: Heartbeat) -> bytes:
    """Encodes a heartbeat without a frame."""
    return _heartbeat_message(beat.done, beat.running, beat.failed, beat.work).SerializeToString()


def _heartbeat_message(
    done: int, running: int, failed: int, work: Iterable[RunningClients]
) -> extensions_pb2.Heartbeat:
    heartbeat = extensions_pb2.Heartbeat(done=done, running=running, failed=failed)
    for piece in work:
        piece.write(heartbeat.work.add())
    return heartbeat


def data_frames(segments: Iterable[Segment], chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yields the frames that contain the bytes of arrays. Each frame is created when it is requested.

    Args:
      segments: One-dimensional contiguous bytes, or rows. Small segments share a frame, and large segments are split. A
        row is split only if it is larger than a frame.
      chunk_bytes: The maximum number of bytes in a frame.
    """
    if chunk_bytes < 1:
        raise InvalidValueError(f"Expected chunk_bytes to be at least 1, found {chunk_bytes}")
    frame = _OpenFrame(chunk_bytes)
    for segment in segments:
        if isinstance(segment, Rows) and segment.row_bytes <= chunk_bytes:
            yield from frame.fill_with_rows(segment)
            continue
        for content in segment.views() if isinstance(segment, Rows) else (segment,):
            yield from frame.fill_with_bytes(content)
    if frame.pieces:
        yield frame.take()


class _OpenFrame:
    """A data frame that is being filled."""

    def __init__(self, chunk_bytes: int) -> None:
        self.pieces: list[memoryview] = []  # or arrays, which `join` also accepts
        self._chunk_bytes = chunk_bytes
        self._room = chunk_bytes

    def fill_with_bytes(self, content: memoryview) -> Iterator[bytes]:
        """Adds bytes, and yields the frames that become full."""
        start = 0
        while start < len(content):
            piece = content[start : start + self._room]
            self.pieces.append(piece)
            start += len(piece)
            self._room -= len(piece)
            if not self._room:
                yield self.take()

    def fill_with_rows(self, rows: Rows) -> Iterator[bytes]:
        """Adds rows without splitting any, and yields the frames that become full.

        The arrays are passed to `join` directly, because creating a view of each array would take time.
        """
        start = 0
        while start < len(rows.arrays):
            count = self._room // rows.row_bytes
            if not count:
                yield self.take()
                continue
            taken = rows.arrays[start : start + count]
            self.pieces.extend(cast("Sequence[memoryview]", taken))
            start += count
            self._room -= len(taken) * rows.row_bytes

    def take(self) -> bytes:
        """Returns the frame, and starts the next frame."""
        size = self._chunk_bytes - self._room
        if size >= _ALIGNED_BYTES:
            frame = b"".join((_ALIGNED_TAG, length_of(size, _ALIGNED_LENGTH), *self.pieces))
        else:
            frame = b"".join((_DATA_TAG, length_of(size), *self.pieces))
        self.pieces, self._room = [], self._chunk_bytes
        return frame


def parse_frame(frame: bytes) -> Header | Data | Heartbeat:
    """Decodes a frame. The data of a data frame are a view of the frame, not a copy.

    Raises:
      InvalidValueError: If the bytes are not a frame.
    """
    data = data_of(frame)
    if data is not None:
        return data
    try:
        parsed = extensions_pb2.Frame.FromString(frame)
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a frame with a header, data or a heartbeat, found {len(frame)} bytes that are not a frame "
            f"({error}); check that the peer uses the same protocol"
        ) from error
    kind = parsed.WhichOneof("kind")
    if kind == "header":
        return Header(parsed.header)
    if kind == "data":
        return Data(memoryview(parsed.data))
    if kind == "heartbeat":
        return _heartbeat_in(parsed.heartbeat)
    raise InvalidValueError(
        f"Expected a frame with a header, data or a heartbeat, found an unknown frame of {len(frame)} bytes; check "
        "whether the peer runs a newer release"
    )


def heartbeat_of(content: bytes) -> Heartbeat:
    """Decodes the content of a heartbeat.

    Raises:
      InvalidValueError: If the bytes are not a heartbeat.
    """
    try:
        return _heartbeat_in(extensions_pb2.Heartbeat.FromString(content))
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a heartbeat, found {len(content)} bytes that are not a heartbeat ({error}); check that the peer "
            "uses the same protocol"
        ) from error


def _heartbeat_in(beat: extensions_pb2.Heartbeat) -> Heartbeat:
    work = tuple(map(RunningClients.read, itertools.islice(beat.work, _MOST_WORK)))
    return Heartbeat(beat.done, beat.running, beat.failed, work)


def length_of(size: int, least: int = 1) -> bytes:
    """Encodes a length as a protobuf varint.

    Each byte has seven bits, lowest first. All bytes but the last have their highest bit set.

    Args:
      size: The length.
      least: The minimum number of bytes. The varint is padded with zeros.
    """
    encoded = bytearray()
    while size > 0x7F or len(encoded) + 1 < least:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


def data_of(frame: bytes) -> Data | None:
    """Decodes a frame that contains only data, in constant time. Returns `None` for any other frame."""
    if not frame.startswith(_DATA_TAG):
        return None
    size, start = length_at(frame, len(_ALIGNED_TAG if frame.startswith(_ALIGNED_TAG) else _DATA_TAG))
    return Data(memoryview(frame)[start:]) if start and start + size == len(frame) else None


def length_at(message: bytes | memoryview, at: int) -> tuple[int, int]:
    """Decodes the length at a position of a message.

    Returns:
      The length, and the position after it; both are 0 if the position has no valid length.
    """
    size = 0
    for index, byte in enumerate(message[at : at + _MAX_LENGTH_BYTES]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return size, at + index + 1
    return 0, 0
