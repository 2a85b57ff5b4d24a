"""Frames carry the bytes of arrays unchanged however they are cut, and are what protobuf would have written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.errors import InvalidValueError
from fedstack.foundations.segments import Rows, SegmentReader
from fedstack.proto.extensions_pb2 import Frame, HandshakeRequest, Heartbeat
from fedstack.transport.wire import frames
from fedstack.transport.wire.frames import (
    Data,
    Header,
    RunningClients,
    data_frames,
    header_frame,
    heartbeat_frame,
    length_at,
    parse_frame,
)

segment_lists = st.lists(st.binary(max_size=300), max_size=12)


def views(segments):
    return [memoryview(segment) for segment in segments]


def new_buffers(sizes):
    return [memoryview(bytearray(size)) for size in sizes]


def lengths_in(frame: bytes) -> list[int]:
    """Returns how many bytes the length of each field takes."""
    taken, at = [], 0
    while at < len(frame):
        size, start = length_at(frame, at + 1)
        taken.append(start - at - 1)
        at = start + size
    return taken


def cut(content: bytes, places) -> list[bytes]:
    """Cuts bytes at places given as any numbers."""
    ends = sorted(place % (len(content) + 1) for place in places)
    return [content[start:end] for start, end in zip([0, *ends], [*ends, len(content)])]


@given(segments=segment_lists, chunk_bytes=st.integers(1, 400), places=st.lists(st.integers(0, 10**6), max_size=8))
def test_any_segments_arrive_however_they_are_cut(segments, chunk_bytes, places):
    received = b"".join(bytes(parse_frame(frame).data) for frame in data_frames(views(segments), chunk_bytes))
    assert received == b"".join(segments)
    buffers = new_buffers(map(len, segments))
    reader = SegmentReader(buffers)
    for piece in cut(received, places):
        reader.feed(memoryview(piece))
    reader.finish()
    assert reader.complete
    assert [bytes(buffer) for buffer in buffers] == segments


@given(segments=segment_lists, chunk_bytes=st.integers(1, 400))
def test_a_data_frame_is_what_protobuf_writes_and_reads(segments, chunk_bytes):
    for frame in data_frames(views(segments), chunk_bytes):
        parsed = Frame.FromString(frame)
        assert parsed.WhichOneof("kind") == "data"
        assert parsed.SerializeToString() == frame
        assert 0 < len(parsed.data) <= chunk_bytes


def test_arrays_lie_aligned_in_large_frames():
    (frame,) = data_frames([memoryview(bytes(range(256)) * 64)])
    assert frame.index(bytes(range(256))) == 8
    assert max(lengths_in(frame)) <= 5  # C++ reads none that is longer
    assert parse_frame(frame) == Data(memoryview(bytes(range(256)) * 64))
    assert Frame.FromString(frame).data == bytes(range(256)) * 64


@given(size=st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152]))
def test_frames_of_protobufs_own_making_are_read(size):
    frame = Frame(data=bytes(size)).SerializeToString()
    assert parse_frame(frame) == Data(memoryview(bytes(size)))


def test_all_frames_but_the_last_are_full():
    sizes = [len(parse_frame(frame).data) for frame in data_frames(views([b"a" * 5, b"", b"b" * 11, b"c"]), 4)]
    assert sizes == [4, 4, 4, 4, 1]


@given(
    counts=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), max_size=4),
    between=st.binary(max_size=30),
    chunk_bytes=st.integers(1, 60),
)
def test_rows_travel_as_their_bytes_between_others(counts, between, chunk_bytes):
    random = np.random.default_rng(1)
    tables = [random.integers(0, 256, shape, np.uint8) for shape in counts]
    segments = [segment for table in tables for segment in (Rows(list(table)), memoryview(between))]
    frames_made = [bytes(parse_frame(frame).data) for frame in data_frames(segments, chunk_bytes)]
    assert b"".join(frames_made) == b"".join(table.tobytes() + between for table in tables)
    assert all(0 < len(content) <= chunk_bytes for content in frames_made)
    assert sum(map(len, segments)) == sum(map(len, frames_made))


def test_a_row_is_cut_only_where_no_frame_has_room_for_it():
    def sizes(row_bytes, chunk_bytes):
        rows = Rows([np.zeros(row_bytes, np.uint8)] * 5)
        return [len(parse_frame(frame).data) for frame in data_frames([memoryview(b"a"), rows], chunk_bytes)]

    assert sizes(3, 8) == [7, 6, 3]
    assert sizes(8, 8) == [1, 8, 8, 8, 8, 8]
    assert sizes(9, 8) == [8, 8, 8, 8, 8, 6]


def test_no_bytes_need_no_frames():
    assert list(data_frames(views([b"", b""]))) == []


def test_frames_are_made_only_when_they_are_asked_for():
    asked = []

    def segments():
        for number in range(3):
            asked.append(number)
            yield memoryview(bytes(10))

    made = data_frames(segments(), 10)
    next(made)
    assert asked == [0]


def test_chunks_have_at_least_one_byte():
    with pytest.raises(InvalidValueError, match="Expected chunk_bytes to be at least 1, found 0"):
        list(data_frames([memoryview(b"a")], 0))


def test_data_is_a_view_of_the_frame():
    (frame,) = data_frames([memoryview(bytes(1000))])
    parsed = parse_frame(frame)
    assert isinstance(parsed, Data)
    assert parsed.data.obj is frame


def test_arrays_travel_as_their_bytes():
    array = np.arange(1000, dtype=np.float32)
    received = np.empty_like(array)
    reader = SegmentReader([received.view(np.uint8).data])
    for frame in data_frames([array.view(np.uint8).data], 128):
        reader.feed(parse_frame(frame).data)
    reader.finish()
    assert np.array_equal(received, array)


def test_a_header_carries_its_message():
    message = HandshakeRequest(protocol=1, version="x" * 1000)
    frame = header_frame(message.SerializeToString())
    assert parse_frame(frame) == Header(message.SerializeToString())
    assert Frame.FromString(frame).header == message.SerializeToString()


def test_an_empty_header_is_a_header():
    assert parse_frame(header_frame(HandshakeRequest().SerializeToString())) == Header(b"")


def test_a_heartbeat_counts_clients():
    assert parse_frame(heartbeat_frame(3, 2, 1)) == frames.Heartbeat(done=3, running=2, failed=1)
    assert parse_frame(heartbeat_frame()) == frames.Heartbeat()


def test_a_heartbeat_tells_what_runs():
    work = (RunningClients(7, 1, "train", 8.5), RunningClients(0, 0, "update", 0.25))
    assert parse_frame(heartbeat_frame(work=work)) == frames.Heartbeat(work=work)


@pytest.mark.parametrize("name", ["x" * 1_000_000, "\ud800", "\x1b[2J"], ids=["long", "surrogate", "control"])
def test_any_name_of_a_function_fits_into_a_heartbeat(name):
    frame = heartbeat_frame(work=[RunningClients(0, 1, name, 1.0)])
    assert len(frame) < 300
    assert parse_frame(frame).work[0].function.isprintable()


@given(content=st.binary(max_size=40) | st.binary(max_size=20).map(lambda content: b"\x12" + content))
def test_garbage_is_refused_or_read_as_protobuf_would(content):
    try:
        frame = parse_frame(content)
    except InvalidValueError:
        return
    parsed = Frame.FromString(content)
    assert parsed.WhichOneof("kind") == type(frame).__name__.lower()
    if isinstance(frame, Data):
        assert frame.data == parsed.data


@pytest.mark.parametrize("content", [b"", b"\x12", b"\x12\x05abc", b"\x12" + b"\xff" * 11, b"\x22\x01a"])
def test_what_is_no_frame_is_refused(content):
    with pytest.raises(InvalidValueError, match="Expected a frame with a header, data or a heartbeat, found"):
        parse_frame(content)


def test_of_two_kinds_in_one_frame_the_last_counts():
    both = Frame(data=b"abc").SerializeToString() + Frame(heartbeat=Heartbeat(done=1)).SerializeToString()
    assert parse_frame(both) == frames.Heartbeat(done=1)


def test_too_many_bytes_are_refused_and_not_written():
    (buffer,) = buffers = new_buffers([4])
    reader = SegmentReader(buffers)
    reader.feed(memoryview(b"ab"))
    with pytest.raises(InvalidValueError, match="Expected 4 bytes of data, .* found at least 5"):
        reader.feed(memoryview(b"cde"))
    assert bytes(buffer) == b"ab\0\0"


def test_an_early_end_is_refused():
    reader = SegmentReader(new_buffers([4, 4]))
    reader.feed(memoryview(b"abcdef"))
    assert not reader.complete
    assert repr(reader) == "<SegmentReader 6 of 8 bytes>"
    with pytest.raises(InvalidValueError, match="The stream ended after 6 of the 8 bytes"):
        reader.finish()


def test_a_reader_of_nothing_is_complete():
    reader = SegmentReader(new_buffers([0, 0]))
    reader.feed(memoryview(b""))
    reader.finish()
    assert reader.complete
