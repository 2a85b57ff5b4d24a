"""Defines parcels, which travel as one unit: a message, and the memory of large arrays beside it.

A transport carries them in its own form. gRPC sends a small parcel as one message (`write_whole`) and any other as
frames (`frames.py`); a connection in memory passes parcels on.

Ownership of memory: a segment stays the sender's. The sender does not change it until the call has ended, or until it
is asked for its next answer; after that a transport keeps no reference to it. A buffer stays the receiver's. It is
written to only while `read_into` runs.
"""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs
from google.protobuf.message import DecodeError

from fedstack.errors import InvalidValueError
from fedstack.foundations.segments import Rows, Segment, SegmentReader, joined
from fedstack.proto import extensions_pb2
from fedstack.transport.wire.frames import (
    CHUNK_BYTES,
    Data,
    Header,
    Heartbeat,
    data_frames,
    header_frame,
    length_at,
    length_of,
)


@attrs.frozen
class Parcel:
    """A message and memory, to send.

    Attributes:
      header: The message, serialized.
      segments: The memory, in the order in which the message describes it.
      chunk_bytes: The most bytes of segments in a piece, for transports that cut them.
      is_last: Whether no other parcel comes after it in the same call, as far as that is known.
    """

    header: bytes
    segments: Sequence[Segment] = ()
    chunk_bytes: int = CHUNK_BYTES
    is_last: bool = True


# The parts of an incoming parcel: its header, then the bytes of its segments, cut anywhere, or all of it at once; with
# heartbeats between them.
Piece: TypeAlias = Header | Data | Heartbeat | Parcel
# Runs work on so many bytes: on the current thread, or on another.
Run: TypeAlias = Callable[[int, Callable[[], None]], Awaitable[None]]


def frames_of(parcel: Parcel) -> Iterator[bytes]:
    """Yields a parcel as frames, each made when it is needed."""
    yield header_frame(parcel.header)
    yield from data_frames(parcel.segments, parcel.chunk_bytes)


def pieces_of(parcel: Parcel) -> Iterator[Piece]:
    """Yields a parcel as it arrives: its own memory, except that several small rows make one piece."""
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


async def _here(_: int, work: Callable[[], None]) -> None:
    work()


class Incoming:
    """A parcel that arrives: first its header, then its segments, into memory of the receiver.

    Nothing is read from the connection before the receiver needs it, so that the receiver can refuse an announced size
    before it allocates memory, and a sender of several parcels waits for a slow receiver.

    Attributes:
      is_here: Whether all of it has arrived with the header.

    Args:
      pieces: The source of the parcel, or the parcel itself.
      run: Copies arrived bytes; by default on the current thread.
      on_heartbeat: Called with each heartbeat; `None` if heartbeats are not allowed.
    """

    def __init__(
        self,
        pieces: AsyncIterator[Piece] | Parcel,
        run: Run = _here,
        on_heartbeat: Callable[[Heartbeat], None] | None = None,
    ) -> None:
        self.is_here = False
        self._pieces: AsyncIterator[Piece] | Parcel | None = pieces  # none where there is nothing left
        self._run = run
        self._on_heartbeat = on_heartbeat
        self._left = memoryview(b"")

    async def header(self) -> bytes:
        """Returns the header; call it first, and again after the segments of each of several parcels.

        Raises:
          InvalidValueError: If there is none.
        """
        pieces = self._pieces
        if isinstance(pieces, Parcel):
            return self._taken(pieces)
        if pieces is not None:
            async for piece in pieces:
                if isinstance(piece, Header):
                    return piece.content
                if isinstance(piece, Parcel):
                    return self._taken(piece)
                self._take_heartbeat(piece)
        raise InvalidValueError("Expected a header and then data, found a stream that ended without one")

    def _taken(self, parcel: Parcel) -> bytes:
        self.is_here = True
        self._pieces = _Here(itertools.islice(pieces_of(parcel), 1, None)) if parcel.segments else None
        return parcel.header

    async def read_into(self, buffers: Sequence[memoryview]) -> None:
        """Waits until the segments are in the buffers.

        Args:
          buffers: Writable bytes, one-dimensional and contiguous, as many as the header announced.

        Raises:
          InvalidValueError: If there are more or fewer bytes, or other pieces than bytes.
        """
        if self._pieces is None and not buffers:
            return
        reader = SegmentReader(buffers)
        while (data := await self._next()) is not None:
            await self._feed(reader, data)
        reader.finish()

    async def read_next(self, buffers: Sequence[memoryview]) -> None:
        """Waits until the next segments are in the buffers; `read_into` reads the rest, which may be empty."""
        reader = SegmentReader(buffers)
        while reader.missing and (data := await self._next()) is not None:
            self._left = data[reader.missing :]
            await self._feed(reader, data[: reader.missing])
        reader.finish()

    async def pieces(self, size: int) -> list[memoryview]:
        """Returns the next bytes as they have arrived, as many as asked for; fewer at the end.

        They are memory of frames, or of the sender without a network: for callers that know that nothing writes to it.
        """
        found: list[memoryview] = []
        while size and (data := await self._next()) is not None:
            self._left = data[size:]
            found.append(data[:size])
            size -= len(found[-1])
        return found

    async def _feed(self, reader: SegmentReader, data: memoryview) -> None:
        await self._run(len(data), lambda: reader.feed(data))

    async def _next(self) -> memoryview | None:
        """Returns the next bytes, and `None` after the last."""
        if self._left:
            left, self._left = self._left, memoryview(b"")
            return left
        pieces = self._pieces
        if pieces is not None and not isinstance(pieces, Parcel):
            async for piece in pieces:
                if isinstance(piece, Data):
                    return piece.data
                self._take_heartbeat(piece)
        return None

    def _take_heartbeat(self, piece: Piece) -> None:
        if self._on_heartbeat is None or not isinstance(piece, Heartbeat):
            raise InvalidValueError(
                f"Expected a header and then data, found a {type(piece).__name__}; the peer speaks something else"
            )
        self._on_heartbeat(piece)


def incoming_of(parcel: Parcel, run: Run = _here) -> Incoming:
    """Returns the incoming side of a parcel that is already in memory."""
    return Incoming(parcel, run)


class _Here:
    """Pieces that are already in memory."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = iter(pieces)

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


# Without parcels as one message, a small call of a method takes 1.8 times as long, 1.6 times with 32 in flight, and a
# call of a megabyte 1.2 times (`benchmarks --only methods`; `call_stream.py` is the serving half). They are written and
# read by hand, as frames are, so that bytes are copied once: with protobuf's own copies a megabyte takes 1.5 times as
# long. The suffix of methods that take them:
SUFFIX = "Whole"
# The method that returns the answers of calls that continue.
JOIN = "Join"
# The most bytes of a parcel that travels as one message: an array of a megabyte and its description.
WHOLE_BYTES = CHUNK_BYTES + (64 << 10)

_HEADER_TAG = bytes([extensions_pb2.Whole.HEADER_FIELD_NUMBER << 3 | 2])  # 2: length-delimited
_DATA_TAG = bytes([extensions_pb2.Whole.DATA_FIELD_NUMBER << 3 | 2])


def fits_whole(parcel: Parcel) -> bool:
    """Returns whether a parcel is small enough for one message."""
    size = len(parcel.header)
    for segment in parcel.segments:
        if size > WHOLE_BYTES:
            break
        size += len(segment)
    return size <= WHOLE_BYTES


def write_whole(parcel: Parcel) -> bytes:
    """Returns a parcel as one message."""
    header = _HEADER_TAG, length_of(len(parcel.header)), parcel.header
    size = sum(map(len, parcel.segments))
    return joined(parcel.segments, *header, *((_DATA_TAG, length_of(size)) if size else ()))


def write_goes_on(call: str) -> bytes:
    """Returns the answer to a call that continues."""
    return extensions_pb2.Whole(goes_on=call).SerializeToString()


def join_request(call: str) -> bytes:
    """Returns the request for the answer to a call that continues."""
    return extensions_pb2.JoinRequest(call=call).SerializeToString()


def read_whole(message: bytes | memoryview) -> Parcel | str:
    """Reads a parcel, whose segment is a view of the message, or the id of a call that continues.

    Raises:
      InvalidValueError: If the message is neither.
    """
    parcel = _parcel_of(message)
    if parcel is not None:
        return parcel
    try:
        parsed = extensions_pb2.Whole.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a header and data in one message, found {len(message)} bytes that are not one ({error}); do "
            "both sides speak the same protocol?"
        ) from error
    return parsed.goes_on or Parcel(parsed.header, [memoryview(parsed.data)] if parsed.data else ())


def _parcel_of(message: bytes | memoryview) -> Parcel | None:
    """Reads a header with or without data after it, in constant time; returns `None` for anything else."""
    start, end = _field_at(message, _HEADER_TAG, 0)
    if not start:
        return None
    header = bytes(message[start:end])
    if end == len(message):
        return Parcel(header)
    start, last = _field_at(message, _DATA_TAG, end)
    return Parcel(header, [memoryview(message)[start:]]) if start and last == len(message) else None


def _field_at(message: bytes | memoryview, tag: bytes, at: int) -> tuple[int, int]:
    """Returns the begin and end of a field's content; zeros if there is no such field."""
    if message[at : at + 1] != tag:
        return 0, 0
    size, start = length_at(message, at + 1)
    end = start + size
    return (start, end) if start and end <= len(message) else (0, 0)
