"""Writes a parcel as one message, for what is small: the header, and then the bytes of its segments as they are.

Where all parcels went as streams of frames, a small call of a method would take 1.8 times as long, 1.6 times with 32 in
flight, and one of a megabyte 1.2 times (`benchmarks --only methods`; `whole_calls.py` is the serving half).

Written and read by hand, as protobuf would, for the reason that frames are: bytes are copied once, into the message.
With protobuf's own copies a megabyte takes 1.5 times as long; what is small is as fast.
"""

from google.protobuf.message import DecodeError

from fedstack.errors import InvalidValueError
from fedstack.foundations.segments import joined
from fedstack.proto import extensions_pb2
from fedstack.transport.wire.frames import CHUNK_BYTES, length_at, length_of
from fedstack.transport.wire.parcels import Parcel

# How the methods end that take them.
SUFFIX = "Whole"
# Where the answers to calls are that go on.
JOIN = "Join"
# The most bytes of a parcel that goes in one message: an array of a megabyte, and what says that it is one.
WHOLE_BYTES = CHUNK_BYTES + (64 << 10)

_HEADER_TAG = bytes([extensions_pb2.Whole.HEADER_FIELD_NUMBER << 3 | 2])  # 2: a length and so many bytes
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
    """Returns the answer to a call that goes on."""
    return extensions_pb2.Whole(goes_on=call).SerializeToString()


def join_request(call: str) -> bytes:
    """Returns what asks for the answer to a call that goes on."""
    return extensions_pb2.JoinRequest(call=call).SerializeToString()


def read_whole(message: bytes | memoryview) -> Parcel | str:
    """Reads a parcel, whose segment is a view of the message, or the id under which a call goes on.

    Raises:
      InvalidValueError: If it is neither.
    """
    parcel = _parcel_of(message)
    if parcel is not None:
        return parcel
    try:
        parsed = extensions_pb2.Whole.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a header and data in one message, found {len(message)} bytes that are none ({error}); do both "
            "sides speak the same protocol?"
        ) from error
    return parsed.goes_on or Parcel(parsed.header, [memoryview(parsed.data)] if parsed.data else ())


def _parcel_of(message: bytes | memoryview) -> Parcel | None:
    """Reads a header with data after it or none, in no time whatever their size; returns `None` for anything else."""
    start, end = _field_at(message, _HEADER_TAG, 0)
    if not start:
        return None
    header = bytes(message[start:end])
    if end == len(message):
        return Parcel(header)
    start, last = _field_at(message, _DATA_TAG, end)
    return Parcel(header, [memoryview(message)[start:]]) if start and last == len(message) else None


def _field_at(message: bytes | memoryview, tag: bytes, at: int) -> tuple[int, int]:
    """Returns where the content of a field begins and ends; zeros if there is no such field."""
    if message[at : at + 1] != tag:
        return 0, 0
    size, start = length_at(message, at + 1)
    end = start + size
    return (start, end) if start and end <= len(message) else (0, 0)
