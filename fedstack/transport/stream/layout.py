"""Defines the frames of a stream to the byte: how each kind is encoded and decoded.

Each frame has a header of 16 bytes, in little-endian order: the number of bytes that follow (4 bytes), the kind (1),
flags (1), a number whose meaning depends on the kind (2), and the exchange (8). An exchange is a call and its answers.
The client numbers its exchanges in increasing order, starting with 1. Frames with exchange 0 concern the connection.

A parcel is sent in one of two ways. A *small* parcel is one frame with its header and segments. Of a *large* parcel,
the receiver first gets a frame with the header and the size of the segments. It then grants bytes for which it has
memory, and the sender sends them as data frames. If the header itself is large, it is sent like a segment.

Over a Unix socket, the frame of a call may come with a file in memory, which contains some of the segments, so that the
server need not copy them. The server skips what it reads from the file, and may also ignore the file.
"""

import enum
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

from fedstack.errors import InvalidValueError
from fedstack.foundations.memory_files import ReceivedFile
from fedstack.foundations.segments import Segment, joined
from fedstack.transport.wire.frames import CHUNK_BYTES
from fedstack.transport.wire.parcels import Parcel, Span

# Anything that a socket sends: `bytes`, or memory of others.
Buffer: TypeAlias = Any

FRAME_HEADER = struct.Struct("<IBBHQ")
HEADER_BYTES = FRAME_HEADER.size
_COUNT = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
# The time limit of a call in seconds, and the number of bytes of the header and of the segments.
_PARCEL = struct.Struct("<dQQ")
_SPAN = struct.Struct("<QQQ")

# The maximum size of a parcel that is sent as one frame: an array of a megabyte and its description.
SMALL_PARCEL_BYTES = CHUNK_BYTES + (64 << 10)
# The maximum size of a frame, except that of data frames, which need no memory of their own.
MOST_FRAME_BYTES = SMALL_PARCEL_BYTES + (64 << 10)
MOST_DATA_BYTES = CHUNK_BYTES
_MOST_PATH_BYTES = 1000
# Segments start at a multiple of this number of bytes, so that arrays can be used without a copy.
_ALIGNMENT = 16


class Kind(enum.IntEnum):
    """The kinds of frames. The numbers are part of the protocol."""

    HELLO = 1
    CALL = 2
    PARCEL = 3
    DATA = 4
    GRANT = 5
    CREDIT = 6
    HEARTBEAT = 7
    END = 8
    CANCEL = 9
    PING = 10
    PONG = 11
    DRAIN = 12
    BYE = 13
    SKIP = 14


# Flags of the frames of parcels.
SEGMENTS_INSIDE = 1  # the segments are in the same frame
HEADER_FOLLOWS = 2  # the header is sent before the segments, in data frames
LAST = 4  # the parcel is the last of its call, as far as is known
FILE = 8  # a file comes with the frame


class ProtocolError(InvalidValueError):
    """Raised when a peer sends what the protocol does not allow. The connection cannot be used afterwards."""


@attrs.frozen
class Announced:
    """The frame of a parcel, as received.

    Attributes:
      path: The path of the method; empty for answers.
      seconds: The time limit of the call in seconds; `None` for no limit.
      header_bytes: The size of the header.
      header: The header; `None` if it follows in data frames.
      segment_bytes: The size of all segments.
      segments: The segments, if they are in the same frame.
      is_last: Whether the parcel is the last of its call, as far as is known.
      spans: The parts of the segments that are in a file.
      file: The file, if one has come with the frame.
    """

    path: str
    seconds: float | None
    header_bytes: int
    header: bytes | None
    segment_bytes: int
    segments: memoryview | None
    is_last: bool
    spans: Sequence[Span] = ()
    file: ReceivedFile | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the frame contains the whole parcel."""
        return self.header is not None and (self.segments is not None or not self.segment_bytes)

    @property
    def following(self) -> int:
        """The number of bytes that follow in data frames."""
        if self.is_whole:
            return 0
        return self.segment_bytes + (self.header_bytes if self.header is None else 0)


def frame(kind: Kind, exchange: int = 0, payload: bytes = b"", number: int = 0) -> bytes:
    """Encodes a frame without flags."""
    return FRAME_HEADER.pack(len(payload), kind, 0, number, exchange) + payload


def count_frame(kind: Kind, exchange: int, count: int) -> bytes:
    """Encodes a frame whose content is a number of bytes."""
    return FRAME_HEADER.pack(_COUNT.size, kind, 0, 0, exchange) + _COUNT.pack(count)


def data_header(exchange: int, size: int) -> bytes:
    """Encodes the header of a data frame. The data follow."""
    return FRAME_HEADER.pack(size, Kind.DATA, 0, 0, exchange)


def end_frame(exchange: int, code: int = 0, message: str = "", details: bytes = b"") -> bytes:
    """Encodes the end of an exchange, with its status."""
    if not code:
        return FRAME_HEADER.pack(0, Kind.END, 0, 0, exchange)
    text = message.encode()
    return frame(Kind.END, exchange, _LENGTH.pack(len(text)) + text + details, code)


def read_count(payload: bytes) -> int:
    """Decodes the content of a frame with a number of bytes."""
    if len(payload) != _COUNT.size:
        raise ProtocolError(f"Expected a number of {_COUNT.size} bytes in a frame, found {len(payload)} bytes")
    return _COUNT.unpack(payload)[0]


def read_end(payload: bytes) -> tuple[str, bytes]:
    """Decodes the message and the details of a status."""
    if not payload:
        return "", b""
    size = _LENGTH.unpack_from(payload)[0] if len(payload) >= _LENGTH.size else len(payload)
    if size > len(payload) - _LENGTH.size:
        raise ProtocolError(f"Expected a status with a message of {size} bytes, found a frame of {len(payload)} bytes")
    start = _LENGTH.size
    return payload[start : start + size].decode(errors="replace"), payload[start + size :]


def parcel_bytes(parcel: Parcel) -> int:
    """Returns the size of a parcel."""
    return len(parcel.header) + sum(map(len, parcel.segments))


def parcel_frame(
    exchange: int,
    parcel: Parcel,
    size: int,
    path: str = "",
    seconds: float | None = None,
    spans: Sequence[Span] = (),
) -> tuple[list[Buffer], Sequence[Segment], int]:
    """Encodes the first frame of a parcel.

    Args:
      exchange: The exchange.
      parcel: The parcel.
      size: The size of the parcel.
      path: The path of the method, for the request of a call; empty for an answer.
      seconds: The time limit of the call in seconds; `None` for no limit.
      spans: The parts of the segments that are in a file, if a file is sent with the frame.

    Returns:
      The buffers of the frame, the segments that follow in data frames, and the size of these segments.
    """
    header, named = parcel.header, path.encode()
    segment_bytes = size - len(header)
    flags = LAST if parcel.is_last else 0
    inside: bytes | memoryview = b""
    rest: Sequence[Segment] = ()
    if size <= SMALL_PARCEL_BYTES:
        flags |= SEGMENTS_INSIDE
    elif len(header) <= SMALL_PARCEL_BYTES:
        rest = parcel.segments
    else:
        flags |= HEADER_FOLLOWS
        rest = [memoryview(header), *parcel.segments]
    following = size - (0 if flags & HEADER_FOLLOWS else len(header)) if rest else 0
    shown = b"" if flags & HEADER_FOLLOWS else header
    start = _PARCEL.size + len(named) + len(shown)
    padding = b""
    if spans:
        assert rest, "only large parcels have a file"
        flags |= FILE
        inside = b"".join(_SPAN.pack(*span) for span in spans)
    if flags & SEGMENTS_INSIDE and segment_bytes:
        padding = bytes(-start % _ALIGNMENT)
        inside = _together(parcel.segments)
    length = start + len(padding) + len(inside)
    kind = Kind.CALL if path else Kind.PARCEL
    first = (
        FRAME_HEADER.pack(length, kind, flags, len(named), exchange)
        + _PARCEL.pack(seconds or 0.0, len(header), segment_bytes)
        + named
    )
    if len(shown) + len(inside) <= _COPIED_BYTES:
        return [b"".join((first, shown, padding, inside))], rest, following
    return [buffer for buffer in (first, shown, padding, inside) if buffer], rest, following


# Less is copied into the frame, which is faster than sending several buffers.
_COPIED_BYTES = 16 << 10


def _together(segments: Sequence[Segment]) -> bytes | memoryview:
    if len(segments) == 1 and isinstance(segments[0], memoryview):
        return segments[0]
    return joined(segments)


def read_parcel(flags: int, path_bytes: int, payload: bytes | memoryview) -> Announced:
    """Decodes the frame of a parcel.

    Raises:
      ProtocolError: If the frame is shorter or longer than its content.
    """
    size = len(payload)
    start = _PARCEL.size + path_bytes
    if size < start or path_bytes > _MOST_PATH_BYTES:
        raise ProtocolError(
            f"Expected a path of at most {_MOST_PATH_BYTES} bytes within the frame, found one of {path_bytes} bytes in "
            f"a frame of {size} bytes"
        )
    seconds, header_bytes, segment_bytes = _PARCEL.unpack_from(payload)
    path = str(payload[_PARCEL.size : start], "utf-8", "replace")
    end = start if flags & HEADER_FOLLOWS else start + header_bytes
    header = None if flags & HEADER_FOLLOWS else bytes(payload[start:end])
    segments = None
    if flags & SEGMENTS_INSIDE and segment_bytes:
        begin = end + -end % _ALIGNMENT
        end = begin + segment_bytes
        segments = memoryview(payload)[begin:end]
    spans: Sequence[Span] = ()
    if flags & FILE and not flags & SEGMENTS_INSIDE:
        spans, end = _read_spans(payload, end, segment_bytes), size
    if end != size or (flags & HEADER_FOLLOWS and flags & SEGMENTS_INSIDE):
        raise ProtocolError(f"Expected a parcel of {end} bytes in a frame, found a frame of {size} bytes")
    is_limited = 0 < seconds < float("inf")  # false for a NaN
    return Announced(
        path, seconds if is_limited else None, header_bytes, header, segment_bytes, segments, bool(flags & LAST), spans
    )


def _read_spans(payload: bytes | memoryview, start: int, segment_bytes: int) -> Sequence[Span]:
    rest = payload[start:]
    if len(rest) % _SPAN.size or not rest:
        raise ProtocolError(
            f"Expected parts of {_SPAN.size} bytes that describe a file, found {len(rest)} bytes in a frame"
        )
    spans, end = list(_SPAN.iter_unpack(rest)), 0
    for first, size, _ in spans:
        if first < end or not size or first + size > segment_bytes:
            raise ProtocolError(
                f"Expected the parts of {segment_bytes} bytes that are in a file, in order, found {size} bytes from "
                f"byte {first} on, after byte {end}"
            )
        end = first + size
    return spans
