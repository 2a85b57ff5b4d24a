"""Defines parcels, which are sent as a unit: a message together with the memory of the large arrays it describes.

Each transport has its own encoding of parcels. gRPC sends a small parcel as one message (`write_whole`) and other
parcels as frames (`frames.py`). A connection within a process passes parcels on unchanged.

Ownership of memory: a segment belongs to the sender. The sender must not change it until the call has ended or until
the sender is asked for its next parcel. After that, a transport keeps no reference to the segment. A buffer belongs to
the receiver, and is written to only while `read_into` runs.
"""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

import attrs
import numpy as np
from google.protobuf.message import DecodeError

from fedstack.errors import InvalidValueError
from fedstack.foundations.memory_files import SealedFile
from fedstack.foundations.segments import Rows, Segment, SegmentReader, joined
from fedstack.proto import extensions_pb2
from fedstack.transport.wire.bodies import Body
from fedstack.transport.wire.frames import (
    CHUNK_BYTES,
    Data,
    Header,
    Heartbeat,
    Mapped,
    data_frames,
    header_frame,
    length_at,
    length_of,
)

# A part of a parcel's segments that is in a file: where it starts among the segments, its size, and where it starts in
# the file.
Span: TypeAlias = tuple[int, int, int]


@attrs.frozen(eq=False)
class ParcelFile:
    """A file in memory with some of a parcel's segments, which a peer on this machine can read instead.

    Attributes:
      file: The file.
      spans: The parts of the segments that are in the file, in order.
    """

    file: SealedFile
    spans: Sequence[Span]


@attrs.frozen
class Parcel:
    """A message to send, with the memory of the large arrays that it describes.

    Attributes:
      header: The serialized message.
      segments: The memory, in the order in which the message describes it.
      chunk_bytes: The maximum number of segment bytes in a piece, for transports that split segments.
      is_last: Whether the parcel is the last of its call, as far as is known.
      sent: Called on any thread after the transport has taken the last byte.
      file: A file with some of the segments, for connections with `passes_files`.
    """

    header: bytes
    segments: Sequence[Segment] = ()
    chunk_bytes: int = CHUNK_BYTES
    is_last: bool = True
    sent: Callable[[], None] = attrs.field(default=lambda: None, eq=False)
    file: ParcelFile | None = None


# A part of an incoming parcel. A parcel is received either as a whole, or as a header followed by the bytes of the
# segments, which may be split at any position, or a `Body` from which the receiver reads them. Heartbeats may occur in
# between.
Piece: TypeAlias = Header | Data | Body | Heartbeat | Parcel
# Runs a function that processes the given number of bytes, on the current thread or on another.
Run: TypeAlias = Callable[[int, Callable[[], None]], Awaitable[None]]


def frames_of(parcel: Parcel) -> Iterator[bytes]:
    """Yields a parcel as frames. Each frame is created when it is requested."""
    yield header_frame(parcel.header)
    yield from data_frames(parcel.segments, parcel.chunk_bytes)
    parcel.sent()


def pieces_of(parcel: Parcel) -> Iterator[Piece]:
    """Yields the pieces of a parcel as a receiver would get them.

    The pieces are views of the parcel's own memory, except that several small rows are copied into one piece.
    """
    yield Header(parcel.header)
    for segment in parcel.segments:
        if not isinstance(segment, Rows):
            yield Data(segment)
        elif segment.row_bytes > parcel.chunk_bytes // 2:
            yield from map(Data, segment.views())
        else:
            at_once = parcel.chunk_bytes // segment.row_bytes
            views = list(segment.views())
            for start in range(0, len(views), at_once):
                yield Data(memoryview(b"".join(views[start : start + at_once])))
    parcel.sent()


async def _here(_: int, work: Callable[[], None]) -> None:
    work()


class Incoming:
    """A parcel that is being received: first the header, then the segments, into memory of the receiver.

    The connection is read only when the receiver requests data. The receiver can therefore reject an announced size
    before it allocates memory, and a sender of several parcels waits for a slow receiver.

    Args:
      pieces: The source of the pieces of the parcel, or the parcel itself.
      run: Runs the function that copies received bytes; by default on the current thread.
      on_heartbeat: A function that is called with each heartbeat; `None` if heartbeats are not allowed.

    Attributes:
      is_here: Whether the whole parcel was received together with its header.
    """

    def __init__(
        self,
        pieces: AsyncIterator[Piece] | Parcel,
        run: Run = _here,
        on_heartbeat: Callable[[Heartbeat], None] | None = None,
    ) -> None:
        self.is_here = False
        self._pieces: AsyncIterator[Piece] | Parcel | None = pieces  # `None` if no pieces remain
        self._here: Iterator[Piece] = iter(())  # the segments of a parcel that was received as a whole
        self._run = run
        self._on_heartbeat = on_heartbeat
        self._left = memoryview(b"")
        self._body: Body | None = None  # the segments that are read from the connection
        self._mapped: Mapped | None = None

    async def header(self) -> bytes:
        """Returns the header of the parcel.

        It must be called before the segments are read. If the call has several parcels, it must be called again for
        each of them, after the segments of the previous parcel have been read.

        Raises:
          InvalidValueError: If the stream ends without a header, or contains another piece.
        """
        pieces = self._pieces
        if isinstance(pieces, Parcel):
            self._pieces = None
            return self._taken(pieces)
        if pieces is not None:
            async for piece in pieces:
                if isinstance(piece, Header):
                    self._mapped = piece.mapped
                    return piece.content
                if isinstance(piece, Parcel):
                    return self._taken(piece)
                self._take_heartbeat(piece)
        raise InvalidValueError(
            "Expected a header followed by data, found the end of the stream; check that the peer is still running"
        )

    def mapped(self, start: int, size: int) -> memoryview | None:
        """Returns memory that already has a part of the segments, if there is any; see `Mapped`.

        It must be called before the segments are read, for one part after another. The memory, which is read-only, then
        has to be among the buffers into which the segments are read.

        Args:
          start: Where the part starts among all segments.
          size: The size of the part.
        """
        return None if self._mapped is None else self._mapped(start, size)

    def _taken(self, parcel: Parcel) -> bytes:
        self.is_here = True
        self._here = itertools.islice(pieces_of(parcel), 1, None)
        return parcel.header

    async def read_into(self, buffers: Sequence[memoryview]) -> None:
        """Reads all remaining segments into the buffers.

        Args:
          buffers: Writable, one-dimensional, contiguous buffers, which together have the announced number of bytes.

        Raises:
          InvalidValueError: If the parcel has more or fewer bytes than the buffers, or contains pieces other than data.
        """
        reader = SegmentReader(buffers)
        while (data := await self._next()) is not None:
            if isinstance(data, Body):
                await data.read_into(reader.take(data.left))
            else:
                await self._feed(reader, data)
        reader.finish()

    async def read_next(self, buffers: Sequence[memoryview]) -> None:
        """Reads the next segments into the buffers. `read_into` must read the rest, even if it is empty."""
        reader = SegmentReader(buffers)
        while reader.missing and (data := await self._next()) is not None:
            if isinstance(data, Body):
                await data.read_into(reader.take(min(data.left, reader.missing)))
                continue
            self._left = data[reader.missing :]
            await self._feed(reader, data[: reader.missing])
        reader.finish()

    async def pieces(self, size: int) -> list[memoryview]:
        """Returns the next `size` bytes as received, without copying them; fewer bytes at the end of the parcel.

        The bytes belong to the memory of frames or, if there is no network, of the sender. Callers must make sure that
        this memory is not written to.
        """
        found: list[memoryview] = []
        while size and (data := await self._next()) is not None:
            if isinstance(data, Body):
                data = await _memory_of(data, min(size, data.left))
            self._left = data[size:]
            found.append(data[:size])
            size -= len(found[-1])
        return found

    async def _feed(self, reader: SegmentReader, data: memoryview) -> None:
        await self._run(len(data), lambda: reader.feed(data))

    async def _next(self) -> memoryview | Body | None:
        """Returns the next bytes, or a body with bytes to read, or `None` after the last bytes."""
        if self._left:
            left, self._left = self._left, memoryview(b"")
            return left
        for piece in self._here:
            assert isinstance(piece, Data)
            return piece.data
        if self._body is not None and self._body.left:
            return self._body
        pieces = self._pieces
        if pieces is not None and not isinstance(pieces, Parcel):
            async for piece in pieces:
                if isinstance(piece, Data):
                    return piece.data
                if isinstance(piece, Body):
                    self._body = piece
                    return piece
                self._take_heartbeat(piece)
        return None

    def _take_heartbeat(self, piece: Piece) -> None:
        if self._on_heartbeat is None or not isinstance(piece, Heartbeat):
            raise InvalidValueError(
                f"Expected a header followed by data, found a {type(piece).__name__}; check that the peer uses the "
                "same protocol"
            )
        self._on_heartbeat(piece)


async def _memory_of(body: Body, size: int) -> memoryview:
    """Returns new memory with the next bytes of a body."""
    memory = np.empty(size, np.uint8).data
    await body.read_into([memory])
    return memory.toreadonly()


def incoming_of(parcel: Parcel, run: Run = _here) -> Incoming:
    """Wraps a parcel that is already in memory, so that it can be read like a received parcel."""
    return Incoming(parcel, run)


# Small parcels are sent as one message. With frames instead, a small call of a method takes 1.8 times as long, or 1.6
# times with 32 calls in flight, and a call with a megabyte 1.2 times as long (`benchmarks --only methods`).
# `whole_calls.py` implements the server side. Like frames, these messages are encoded and decoded without protobuf, so
# that bytes are copied only once: with protobuf's copies, a call with a megabyte takes 1.5 times as long.

# The suffix of methods that receive and return a parcel as one message.
SUFFIX = "Whole"
# The method that returns the remaining response of a call that was still running when it first responded.
JOIN = "Join"
# The maximum size of a parcel that is sent as one message: an array of a megabyte and its description.
WHOLE_BYTES = CHUNK_BYTES + (64 << 10)

_HEADER_TAG = bytes([extensions_pb2.Whole.HEADER_FIELD_NUMBER << 3 | 2])  # 2: length-delimited
_DATA_TAG = bytes([extensions_pb2.Whole.DATA_FIELD_NUMBER << 3 | 2])


def fits_whole(parcel: Parcel) -> bool:
    """Returns whether a parcel is small enough to be sent as one message."""
    size = len(parcel.header)
    for segment in parcel.segments:
        if size > WHOLE_BYTES:
            break
        size += len(segment)
    return size <= WHOLE_BYTES


def write_whole(parcel: Parcel) -> bytes:
    """Encodes a parcel as one message."""
    header = _HEADER_TAG, length_of(len(parcel.header)), parcel.header
    size = sum(map(len, parcel.segments))
    return joined(parcel.segments, *header, *((_DATA_TAG, length_of(size)) if size else ()))


def write_goes_on(call: str) -> bytes:
    """Returns the first response to a call that is still running: the id of the call."""
    return extensions_pb2.Whole(goes_on=call).SerializeToString()


def join_request(call: str) -> bytes:
    """Returns the request for the response of a call that is still running."""
    return extensions_pb2.JoinRequest(call=call).SerializeToString()


def read_whole(message: bytes | memoryview) -> Parcel | str:
    """Decodes a message that contains either a parcel or the id of a call that is still running.

    Returns:
      The parcel, whose segment is a view of the message, or the id.

    Raises:
      InvalidValueError: If the message cannot be decoded.
    """
    parcel = _parcel_of(message)
    if parcel is not None:
        return parcel
    try:
        parsed = extensions_pb2.Whole.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a header and data in one message, found {len(message)} bytes that cannot be decoded ({error}); "
            "check that the peer uses the same protocol"
        ) from error
    return parsed.goes_on or Parcel(parsed.header, [memoryview(parsed.data)] if parsed.data else ())


def _parcel_of(message: bytes | memoryview) -> Parcel | None:
    """Decodes a message with a header and optional data, in constant time. Returns `None` for other messages."""
    start, end = _field_at(message, _HEADER_TAG, 0)
    if not start:
        return None
    header = bytes(message[start:end])
    if end == len(message):
        return Parcel(header)
    start, last = _field_at(message, _DATA_TAG, end)
    return Parcel(header, [memoryview(message)[start:]]) if start and last == len(message) else None


def _field_at(message: bytes | memoryview, tag: bytes, at: int) -> tuple[int, int]:
    """Returns the start and end of a field's content, or zeros if the position has no such field."""
    if message[at : at + 1] != tag:
        return 0, 0
    size, start = length_at(message, at + 1)
    end = start + size
    return (start, end) if start and end <= len(message) else (0, 0)
