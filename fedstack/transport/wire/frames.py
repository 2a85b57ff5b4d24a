"""Frames the messages of a stream: a header, the bytes of arrays in chunks, heartbeats.

Data frames are written and read by hand, as protobuf would, because protobuf copies bytes on every step: on the way out
they are copied once, into the message that gRPC gets, and on the way in once, from it into the array.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import attrs
from google.protobuf.message import DecodeError

from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import printable, shortened
from fedstack.foundations.number_checks import whole_number_validator
from fedstack.foundations.segments import LARGE_BYTES, Rows, Segment
from fedstack.proto import extensions_pb2

# gRPC streams fastest in messages of 1 to 4 MiB, as measured; it holds several at a time, on both sides.
CHUNK_BYTES = 1024 * 1024
_MOST_BYTES = 1 << 30  # a message has at most 2 GiB
_MAX_NAME_BYTES = 200
_MOST_WORK = 100  # of a peer that reports more than it should


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
# In frames of this size or more, data begin at a multiple of eight, where arrays can be used without a copy. An empty
# field comes first for that; protobuf takes the last one. Its parser for C++ would not read a longer length.
_ALIGNED_BYTES, _ALIGNED_LENGTH = 16 << 10, 5
_ALIGNED_TAG = _DATA_TAG + b"\0" + _DATA_TAG


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
class RunningClients:
    """A function that runs, or that ran at a peer's last report.

    Attributes:
      first_client: The first client of its block, counted over the whole federation.
      clients: The number of clients of the block, which run one after the other; 0 for work at the server.
      function: Its name; of several that run in turn, all names.
      seconds: How long it has run.
      client: The client that runs now; `None` if that is not known.
    """

    first_client: int
    clients: int
    function: str
    seconds: float
    client: int | None = None

    def write(self, message: extensions_pb2.Work) -> None:
        """Writes the work into its message."""
        message.first_client, message.clients = self.first_client, self.clients
        message.function, message.seconds = _named(self.function), self.seconds
        if self.client is not None:
            message.client = self.client

    @classmethod
    def read(cls, message: extensions_pb2.Work) -> "RunningClients":
        """Reads the work from its message."""
        client = message.client if message.HasField("client") else None
        return cls(message.first_client, message.clients, message.function, message.seconds, client)


@attrs.frozen
class Heartbeat:
    """A sign of life, with the numbers of clients of the running phase, and the work that runs, longest first."""

    done: int = 0
    running: int = 0
    failed: int = 0
    work: tuple[RunningClients, ...] = ()


def _named(name: str) -> str:
    """Returns the name of a function in a form that fits every message."""
    return shortened(printable(name[:_MAX_NAME_BYTES]), _MAX_NAME_BYTES)


def header_frame(content: bytes) -> bytes:
    """Returns the first frame of a stream, with a serialized message."""
    return b"".join((_HEADER_TAG, length_of(len(content)), content))


def heartbeat_frame(done: int = 0, running: int = 0, failed: int = 0, work: Iterable[RunningClients] = ()) -> bytes:
    """Returns a heartbeat frame: the server works, for so many clients, and on what."""
    heartbeat = extensions_pb2.Heartbeat(done=done, running=running, failed=failed)
    for piece in work:
        piece.write(heartbeat.work.add())
    return extensions_pb2.Frame(heartbeat=heartbeat).SerializeToString()


def data_frames(segments: Iterable[Segment], chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yields the frames that carry the bytes of arrays, each made when it is needed.

    Args:
      segments: Bytes, one-dimensional and contiguous, or rows. Small ones share a frame, large ones are cut; a row is
        cut only if no frame has room for it.
      chunk_bytes: The most bytes that a frame carries.
    """
    if chunk_bytes < 1:
        raise InvalidValueError(f"Expected chunks of at least 1 byte, found {chunk_bytes}")
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
    """The frame that is being filled."""

    def __init__(self, chunk_bytes: int) -> None:
        self.pieces: list[memoryview] = []  # and arrays, which are as good to `join`
        self._chunk_bytes = chunk_bytes
        self._room = chunk_bytes

    def fill_with_bytes(self, content: memoryview) -> Iterator[bytes]:
        """Yields the full frames; the rest stays here."""
        start = 0
        while start < len(content):
            piece = content[start : start + self._room]
            self.pieces.append(piece)
            start += len(piece)
            self._room -= len(piece)
            if not self._room:
                yield self.take()

    def fill_with_rows(self, rows: Rows) -> Iterator[bytes]:
        """Adds rows, without cutting any. `join` reads arrays as they are: a view of each would take time."""
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
        """Returns the frame and starts the next."""
        size = self._chunk_bytes - self._room
        if size >= _ALIGNED_BYTES:
            frame = b"".join((_ALIGNED_TAG, length_of(size, _ALIGNED_LENGTH), *self.pieces))
        else:
            frame = b"".join((_DATA_TAG, length_of(size), *self.pieces))
        self.pieces, self._room = [], self._chunk_bytes
        return frame


def parse_frame(frame: bytes) -> Header | Data | Heartbeat:
    """Reads a frame. Data is a view of the frame, not a copy.

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
            f"Expected a frame with a header, data or a heartbeat, found {len(frame)} bytes that are not one "
            f"({error}); do both sides speak the same protocol?"
        ) from error
    kind = parsed.WhichOneof("kind")
    if kind == "header":
        return Header(parsed.header)
    if kind == "data":
        return Data(memoryview(parsed.data))
    if kind == "heartbeat":
        beat = parsed.heartbeat
        work = tuple(map(RunningClients.read, itertools.islice(beat.work, _MOST_WORK)))
        return Heartbeat(beat.done, beat.running, beat.failed, work)
    raise InvalidValueError(
        f"Expected a frame with a header, data or a heartbeat, found {len(frame)} bytes without; the peer may be newer"
    )


def length_of(size: int, least: int = 1) -> bytes:
    """Returns a length as protobuf's varint: seven bits a byte, lowest first, with a mark on all bytes but the last.

    Args:
      size: The length.
      least: The fewest bytes; zeros fill the varint up.
    """
    encoded = bytearray()
    while size > 0x7F or len(encoded) + 1 < least:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


def data_of(frame: bytes) -> Data | None:
    """Reads a frame with data only, in constant time; returns `None` for any other."""
    if not frame.startswith(_DATA_TAG):
        return None
    size, start = length_at(frame, len(_ALIGNED_TAG if frame.startswith(_ALIGNED_TAG) else _DATA_TAG))
    return Data(memoryview(frame)[start:]) if start and start + size == len(frame) else None


def length_at(message: bytes | memoryview, at: int) -> tuple[int, int]:
    """Reads a length; returns it and its end, which is 0 if there is no length."""
    size = 0
    for index, byte in enumerate(message[at : at + _MAX_LENGTH_BYTES]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return size, at + index + 1
    return 0, 0
