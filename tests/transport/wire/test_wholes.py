"""A parcel as one message: what protobuf would write, read without a copy; and nothing else is taken for one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.errors import InvalidValueError
from fedstack.foundations.segments import Rows, joined
from fedstack.proto.extensions_pb2 import Whole
from fedstack.transport.wire.parcels import WHOLE_BYTES, Parcel, fits_whole, read_whole, write_goes_on, write_whole


def arrays_of(sizes):
    return [np.arange(size, dtype=np.uint8) for size in sizes]


@given(header=st.binary(max_size=300), sizes=st.lists(st.integers(0, 200), max_size=4), rows=st.integers(0, 3))
def test_a_whole_parcel_is_the_message_that_protobuf_would_write_and_comes_back(header, sizes, rows):
    segments = [array.data for array in arrays_of(sizes)]
    if rows:
        segments.append(Rows([np.full(3, row, np.float32) for row in range(rows)]))
    message = write_whole(Parcel(header, segments))
    data = joined(segments)
    parsed = Whole.FromString(message)
    assert (parsed.header, parsed.data, parsed.goes_on) == (header, data, "")
    found = read_whole(message)
    assert isinstance(found, Parcel)
    assert (found.header, joined(found.segments)) == (header, data)


def test_a_message_that_another_library_writes_is_read_too():
    found = read_whole(b"\x12\x02ab" + b"\x0a\x01h")
    assert isinstance(found, Parcel)
    assert (found.header, joined(found.segments)) == (b"h", b"ab")
    empty = read_whole(Whole().SerializeToString())
    assert isinstance(empty, Parcel)
    assert (empty.header, joined(empty.segments)) == (b"", b"")


def test_data_is_a_view_of_the_message():
    message = write_whole(Parcel(b"h", [memoryview(bytes(1000))]))
    found = read_whole(message)
    assert isinstance(found, Parcel)
    assert found.segments[0].obj is message


def test_a_call_that_goes_on_has_an_id_in_place_of_a_parcel():
    assert read_whole(write_goes_on("c1")) == "c1"


@pytest.mark.parametrize("message", [b"\x0a\x05h", b"\x0a\x01h\x12\x05a", b"\x0a\x01h\x12", b"\x0a" + b"\xff" * 11])
def test_lengths_that_are_said_and_not_there_are_refused(message):
    with pytest.raises(InvalidValueError, match="Expected a header and data in one message"):
        read_whole(message)


def test_what_is_small_fits_and_a_megabyte_does():
    assert fits_whole(Parcel(b"h" * 1000, [memoryview(bytes(1 << 20))]))
    assert not fits_whole(Parcel(b"", [memoryview(bytes(WHOLE_BYTES + 1))]))
    assert not fits_whole(Parcel(bytes(WHOLE_BYTES + 1)))
