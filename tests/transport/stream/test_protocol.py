"""The state machine of a stream: exchanges, windows, and where bytes go."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstack.errors import WorkerUnavailableError
from fedstack.foundations.segments import Rows, joined
from fedstack.transport.stream import layout
from fedstack.transport.stream.exchange_state import Exchange
from fedstack.transport.stream.layout import SMALL_PARCEL_BYTES, Kind, ProtocolError
from fedstack.transport.stream.protocol import MOST_WAITING_BYTES
from fedstack.transport.stream.stream import lost_error
from fedstack.transport.stream.windows import CONNECTION_WINDOW_BYTES, EXCHANGE_WINDOW_BYTES
from fedstack.transport.wire.connection_errors import BROKEN_OFF, NO_ANSWER
from fedstack.transport.wire.parcels import Parcel
from tests.transport.stream.two_ends import End, Recorded, connected, pump


def _opened(end: End, parcel: Parcel, path: str = "/a/B", seconds: float | None = None) -> tuple[Exchange, Recorded]:
    events = Recorded()
    exchange, _ = end.protocol.open(events, path, parcel, seconds, lambda: None)
    return exchange, events


def _bytes(size: int, seed: int = 0) -> memoryview:
    return memoryview(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)).toreadonly()


def test_ends_greet_each_other_before_anything_else() -> None:
    client, server = connected()
    assert client.greeting == b"a server"
    assert server.greeting == b"a client"


def test_a_small_call_is_one_frame_in_each_direction_and_an_end() -> None:
    client, server = connected()
    _, events = _opened(client, Parcel(b"request", [_bytes(100)]), seconds=1.5)
    sent = client.outgoing()
    server.incoming(sent)
    ((exchange, received),) = server.calls
    ((announced, size),) = received.parcels
    assert size == len(sent)
    assert (announced.path, announced.seconds, announced.header) == ("/a/B", 1.5, b"request")
    assert announced.segments is not None
    assert bytes(announced.segments) == bytes(_bytes(100))
    assert server.protocol.send(exchange, Parcel(b"answer"), lambda: None)
    server.protocol.end(exchange)
    client.incoming(server.outgoing())
    assert [announced.header for announced, _ in events.parcels] == [b"answer"]
    assert events.endings == [(0, "", b"")]
    assert not client.protocol.exchanges
    assert not server.protocol.exchanges


def test_segments_of_small_parcels_are_aligned() -> None:
    client, server = connected()
    for header in (b"", b"1", b"12345678", b"x" * 40_000):
        _opened(client, Parcel(header, [_bytes(1 << 20 if header == b"1" else 800)]))
    pump(client, server)
    for _, events in server.calls:
        segments = events.parcels[0][0].segments
        assert segments is not None
        assert np.frombuffer(segments, np.uint8).ctypes.data % 16 == 0


def test_data_of_a_large_parcel_are_sent_when_they_are_granted_and_arrive_in_the_memory_given() -> None:
    client, server = connected()
    content = _bytes(5 << 20)
    taken: list[bool] = []
    events = Recorded()
    client.protocol.open(events, "/a/B", Parcel(b"h", [content]), None, lambda: taken.append(True))
    pump(client, server)
    ((exchange, received),) = server.calls
    assert exchange.left == len(content)
    first, second = np.empty(3 << 20, np.uint8), np.empty(2 << 20, np.uint8)
    server.protocol.receive(exchange, [memoryview(first)])
    pump(client, server)
    assert received.filled == 1
    assert not taken
    server.protocol.receive(exchange, [memoryview(second)])
    pump(client, server)
    assert received.filled == 2
    assert taken == [True]
    assert first.tobytes() + second.tobytes() == bytes(content)


def test_a_large_header_is_sent_like_data() -> None:
    client, server = connected()
    header = bytes(_bytes(SMALL_PARCEL_BYTES + 1))
    _opened(client, Parcel(header, [_bytes(10, 1)]))
    pump(client, server)
    ((exchange, received),) = server.calls
    announced, _ = received.parcels[0]
    assert announced.header is None
    memory, rest = np.empty(announced.header_bytes, np.uint8), np.empty(10, np.uint8)
    server.protocol.receive(exchange, [memoryview(memory), memoryview(rest)])
    pump(client, server)
    assert memory.tobytes() == header
    assert rest.tobytes() == bytes(_bytes(10, 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3 << 20), st.integers(0, 100_000), st.booleans()), min_size=1, max_size=6),
    st.lists(st.integers(1, 300_000), max_size=200),
)
def test_parcels_arrive_as_they_were_sent_however_the_bytes_are_cut(
    parcels: list[tuple[int, int, bool]], sizes: list[int]
) -> None:
    client, server = connected()
    expected: list[tuple[bytes, bytes]] = []
    for number, (size, header, is_rows) in enumerate(parcels):
        segment = _bytes(size, number)
        segments = (
            [Rows(list(np.frombuffer(segment, np.uint8)[: size // 7 * 7].reshape(7, -1)))]
            if is_rows and size >= 7
            else [segment]
        )
        expected.append((bytes(_bytes(header, number + 100)), joined(segments)))
        _opened(client, Parcel(expected[-1][0], segments))
    pump(client, server, lambda: sizes)
    memories: list[np.ndarray] = []
    for exchange, events in server.calls:
        announced, _ = events.parcels[0]
        memories.append(np.empty(exchange.left, np.uint8))
        if exchange.left:
            server.protocol.receive(exchange, [memoryview(memories[-1])])
    pump(client, server, lambda: sizes)
    found: list[tuple[bytes, bytes]] = []
    for (_, events), memory in zip(server.calls, memories):
        announced, _ = events.parcels[0]
        header = memory[: announced.header_bytes].tobytes() if announced.header is None else announced.header
        rest = memory[announced.header_bytes :] if announced.header is None else memory
        found.append((header, rest.tobytes() if announced.segments is None else bytes(announced.segments)))
    assert found == expected


def test_a_small_call_does_not_wait_for_a_large_parcel() -> None:
    client, server = connected()
    _opened(client, Parcel(b"", [_bytes(20 << 20)]))
    pump(client, server)
    exchange, _ = server.calls[0]
    server.protocol.receive(exchange, [memoryview(np.empty(20 << 20, np.uint8))])
    client.incoming(server.outgoing())
    first = client.protocol.queue.buffers()
    _opened(client, Parcel(b"small"))
    client.protocol.queue.sent(sum(map(len, first)))
    second = client.protocol.queue.buffers()
    assert struct.unpack_from("<IBBHQ", second[0])[1] == Kind.CALL
    assert sum(map(len, first)) < 2 << 20


def test_two_large_parcels_take_turns() -> None:
    client, server = connected()
    for _ in range(2):
        _opened(client, Parcel(b"", [_bytes(4 << 20)]))
    pump(client, server)
    for exchange, _ in server.calls:
        server.protocol.receive(exchange, [memoryview(np.empty(4 << 20, np.uint8))])
    client.incoming(server.outgoing())
    order: list[int] = []
    while buffers := client.protocol.queue.buffers():
        order.append(struct.unpack_from("<IBBHQ", buffers[0])[4])
        client.protocol.queue.sent(sum(map(len, buffers)))
    assert order[:4] == [1, 2, 1, 2]


def test_answers_wait_until_earlier_ones_are_consumed() -> None:
    client, server = connected()
    exchange, events = _opened(client, Parcel(b""))
    pump(client, server)
    answering, _ = server.calls[0]
    answers = [Parcel(bytes(1 << 20), is_last=False)] * 8
    copied = [server.protocol.send(answering, answer, lambda: None) for answer in answers]
    pump(client, server)
    here = len(events.parcels)
    assert here < len(answers)
    assert not all(copied)
    assert sum(size for _, size in events.parcels) <= EXCHANGE_WINDOW_BYTES
    done = 0
    while done < len(events.parcels):
        client.protocol.consumed(exchange, events.parcels[done][1], more=True)
        done += 1
        pump(client, server)
    assert done == len(answers)


@pytest.mark.slow
def test_calls_wait_until_the_server_has_taken_earlier_ones() -> None:
    client, server = connected()
    count = CONNECTION_WINDOW_BYTES // (1 << 20) + 5
    for _ in range(count):
        _opened(client, Parcel(bytes(1 << 20)))
    pump(client, server)
    assert CONNECTION_WINDOW_BYTES // (2 << 20) < len(server.calls) < count
    done = 0
    while done < len(server.calls):
        exchange, events = server.calls[done]
        server.protocol.consumed(exchange, events.parcels[0][1], more=False)
        done += 1
        pump(client, server)
    assert done == count


def test_windows_are_returned_for_calls_that_end_before_they_are_consumed() -> None:
    client, server = connected()
    for _ in range(5 * CONNECTION_WINDOW_BYTES // (1 << 20)):
        _opened(client, Parcel(bytes(1 << 20)))
        pump(client, server)
        exchange, _ = server.calls[-1]
        server.protocol.end(exchange)
        pump(client, server)
    assert not client.protocol.exchanges


def test_a_cancelled_call_is_forgotten_and_its_late_answer_ignored() -> None:
    client, server = connected()
    exchange, events = _opened(client, Parcel(b""))
    pump(client, server)
    answering, received = server.calls[0]
    server.protocol.send(answering, Parcel(b"late"), lambda: None)
    server.protocol.heartbeat(answering, b"")
    server.protocol.end(answering)
    client.protocol.cancel(exchange)
    pump(client, server)
    assert not events.parcels
    assert not events.endings
    assert not received.is_cancelled  # it had ended before
    assert not client.protocol.exchanges


def test_answers_that_come_too_late_do_not_use_up_the_window() -> None:
    client, server = connected()
    for _ in range(3 * CONNECTION_WINDOW_BYTES // (1 << 20)):
        exchange, _ = _opened(client, Parcel(b""))
        pump(client, server)
        answering, _ = server.calls[-1]
        server.protocol.send(answering, Parcel(bytes(1 << 20)), lambda: None)
        server.protocol.end(answering)
        client.protocol.cancel(exchange)
        sent = server.outgoing()
        assert len(sent) > 1 << 20
        client.incoming(sent)
        pump(client, server)
    assert client.protocol._window.held == 0


def test_a_request_of_which_nothing_was_sent_is_withdrawn() -> None:
    client, server = connected()
    memory = np.full(1 << 20, 7, np.uint8)
    given_up = [_opened(client, Parcel(b"", [memory.data]))[0] for _ in range(200)]
    begun = b"".join(client.protocol.queue.buffers())[:1000]
    client.protocol.queue.sent(len(begun))
    for exchange in given_up:
        client.protocol.cancel(exchange)
    memory[:] = 9
    server.incoming(begun)
    pump(client, server)
    contents = [np.unique(np.frombuffer(events.parcels[0][0].segments or b"", np.uint8)) for _, events in server.calls]
    assert all(content.tolist() == [7] for content in contents)
    assert len(contents) <= 2
    _, events = _opened(client, Parcel(b"next"))
    pump(client, server)
    server.protocol.end(server.calls[-1][0])
    pump(client, server)
    assert events.endings
    assert client.protocol._window.free > CONNECTION_WINDOW_BYTES - (4 << 20)


@pytest.mark.slow
def test_small_parcels_do_not_overtake_one_that_waits_for_the_window() -> None:
    client, server = connected()
    for _ in range(CONNECTION_WINDOW_BYTES // (1 << 20) + 5):
        _opened(client, Parcel(bytes(1 << 20)))
    _opened(client, Parcel(b"small"))
    pump(client, server)
    assert [len(events.parcels[0][0].header or b"") for _, events in server.calls].count(5) == 0
    done = 0
    while done < len(server.calls):
        exchange, events = server.calls[done]
        server.protocol.consumed(exchange, events.parcels[0][1], more=False)
        done += 1
        pump(client, server)
    assert len(server.calls[-1][1].parcels[0][0].header or b"") == 5


@pytest.mark.slow
def test_cancelled_calls_that_wait_for_the_window_are_forgotten() -> None:
    client, server = connected()
    for _ in range(CONNECTION_WINDOW_BYTES // (1 << 20) - 1):
        _opened(client, Parcel(bytes(1 << 20)))
    waiting = [_opened(client, Parcel(bytes(1 << 20)))[0] for _ in range(100)]
    pump(client, server)
    for exchange in waiting:
        client.protocol.cancel(exchange)
    assert not client.protocol._sender._blocked
    before = len(server.calls)
    for exchange, events in list(server.calls):
        server.protocol.consumed(exchange, events.parcels[0][1], more=False)
    pump(client, server)
    assert len(server.calls) == before


def test_an_end_that_comes_while_data_are_no_longer_read_harms_no_other_call() -> None:
    client, server = connected()
    exchange, _ = _opened(client, Parcel(b""))
    pump(client, server)
    answering, _ = server.calls[0]
    server.protocol.send(answering, Parcel(b"", [_bytes(2 << 20)]), lambda: None)
    pump(client, server)
    client.protocol.receive(exchange, [np.empty(1 << 20, np.uint8).data])
    client.protocol.stop_receiving(exchange)
    pump(client, server)
    server.protocol.end(answering)
    pump(client, server)
    assert not client.protocol.exchanges


def test_an_exchange_that_has_ended_refers_to_no_memory_and_to_nobody() -> None:
    client, server = connected()
    exchange, events = _opened(client, Parcel(b"", [_bytes(2 << 20)]))
    pump(client, server)
    answering, received = server.calls[0]
    server.protocol.end(answering, 3, "no")
    pump(client, server)
    for one, told in ((exchange, events), (answering, received)):
        assert one.events is not told
        assert one.outgoing is one.queued is None


def test_nothing_is_written_to_memory_after_its_reader_has_given_up() -> None:
    client, server = connected()
    exchange, _ = _opened(client, Parcel(b""))
    pump(client, server)
    answering, received = server.calls[0]
    server.protocol.send(answering, Parcel(b"", [_bytes(2 << 20)]), lambda: None)
    pump(client, server)
    memory = np.zeros(2 << 20, np.uint8)
    client.protocol.receive(exchange, [memoryview(memory)])
    server.incoming(client.outgoing())
    sent = server.outgoing()
    client.incoming(sent[:500_000])
    client.protocol.cancel(exchange)
    before = memory.copy()
    client.incoming(sent[500_000:])
    assert (memory == before).all()
    assert memory.any()
    pump(client, server)
    assert received.is_cancelled
    _, events = _opened(client, Parcel(b"next"))
    pump(client, server)
    server.protocol.end(server.calls[-1][0])
    pump(client, server)
    assert events.endings


def test_a_status_carries_its_message_and_details() -> None:
    client, server = connected()
    _, events = _opened(client, Parcel(b""))
    pump(client, server)
    server.protocol.end(server.calls[0][0], 5, "not füund", b"details")
    pump(client, server)
    assert events.endings == [(5, "not füund", b"details")]


def test_all_exchanges_are_told_that_the_connection_was_lost() -> None:
    client, _ = connected()
    told = [_opened(client, Parcel(b""))[1] for _ in range(2)]
    client.protocol.lose(lambda: WorkerUnavailableError("lost"))
    client.protocol.lose(lambda: WorkerUnavailableError("again"))
    assert [str(events.error) for events in told] == ["lost", "lost"]
    assert told[0].error is not told[1].error, "who catches one of them changes it"
    assert not client.protocol.queue


@pytest.mark.slow
def test_a_server_is_overfull_when_its_client_does_not_read() -> None:
    client, server = connected()
    ping = layout.frame(Kind.PING)
    while not server.protocol.is_overfull:
        server.incoming(ping * 10_000)
    assert MOST_WAITING_BYTES < server.protocol.queue.frame_bytes < MOST_WAITING_BYTES + 10_000 * len(ping) + 1
    pump(client, server)
    assert not server.protocol.is_overfull


def _call(number: int, header: bytes = b"", *, following: int = 0, **changes: int) -> bytes:
    payload = struct.pack("<dQQ", 0.0, changes.get("header_bytes", len(header)), following) + b"/a/B" + header
    return struct.pack("<IBBHQ", len(payload), Kind.CALL, changes.get("flags", 0), 4, number) + payload


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(layout.frame(Kind.PARCEL, 1, bytes(24)), id="an answer from a client"),
        pytest.param(layout.end_frame(1), id="an end from a client"),
        pytest.param(_call(1) + _call(1), id="a call with a number that was used"),
        pytest.param(_call(5) + _call(4), id="a call with a smaller number"),
        pytest.param(layout.frame(Kind.CANCEL, 3), id="a cancellation of what never was"),
        pytest.param(layout.count_frame(Kind.GRANT, 3, 1), id="a grant for what never was"),
        pytest.param(_call(1) + layout.count_frame(Kind.GRANT, 1, 1), id="a grant without a parcel"),
        pytest.param(layout.count_frame(Kind.CREDIT, 0, 1), id="credit that was not used"),
        pytest.param(_call(1) + layout.count_frame(Kind.CREDIT, 1, 1), id="credit of an exchange that was not used"),
        pytest.param(_call(1, following=9) + layout.data_header(1, 4) + b"data", id="data that were not granted"),
        pytest.param(layout.data_header(7, 4) + b"data", id="data for what never was"),
        pytest.param(layout.data_header(1, 2 << 20), id="a data frame that is too long"),
        pytest.param(struct.pack("<IBBHQ", 1 << 31, Kind.CALL, 0, 0, 1), id="a frame that is too long"),
        pytest.param(layout.frame(Kind.CALL, 1, b"short"), id="a call that is too short"),
        pytest.param(_call(1, b"abc", header_bytes=1 << 63), id="a header of 2^63 bytes"),
        pytest.param(_call(1, b"abc", flags=3), id="flags that contradict each other"),
        pytest.param(_call(1, b"abc", flags=1, following=1 << 62), id="segments that are not there"),
        pytest.param(struct.pack("<IBBHQ", 0, 99, 0, 0, 1), id="a frame of an unknown kind"),
        pytest.param(layout.frame(Kind.HELLO, 0, b"again"), id="a second greeting"),
        pytest.param(layout.frame(Kind.GRANT, 1, b"123"), id="a number of three bytes"),
        pytest.param(layout.frame(Kind.HEARTBEAT, 1), id="a heartbeat from a client"),
    ],
)
def test_what_the_protocol_does_not_allow_is_an_error(sent: bytes) -> None:
    _, server = connected()
    with pytest.raises(ProtocolError):
        server.incoming(sent)


def test_a_peer_that_does_not_introduce_itself_is_refused() -> None:
    server = End(is_server=True)
    with pytest.raises(ProtocolError, match="introduces itself"):
        server.incoming(layout.frame(Kind.PING))
    with pytest.raises(ProtocolError):
        End(is_server=True).incoming(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")


def test_a_peer_that_sends_more_than_the_window_is_refused() -> None:
    _, server = connected()
    one = _call(1, bytes(1 << 20), header_bytes=1 << 20)
    with pytest.raises(ProtocolError, match="ahead"):
        for number in range(1, 100):
            server.incoming(one[:8] + struct.pack("<Q", number) + one[16:])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_garbage_is_an_error_or_is_ignored(data: st.DataObject) -> None:
    client, server = connected()
    for _ in range(3):
        _opened(client, Parcel(b"x" * 50, [_bytes(100)]))
    sent = bytearray(client.outgoing())
    for _ in range(data.draw(st.integers(1, 5))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    try:
        server.incoming(bytes(sent), data.draw(st.lists(st.integers(1, 50), max_size=20)))
    except ProtocolError:
        return
    for exchange, _ in server.calls:
        server.protocol.end(exchange)


def test_a_lost_connection_counts_as_such_whatever_the_system_says_of_it() -> None:
    error = lost_error("here:1", "[Errno 104] Connection reset by peer")
    assert "Connection reset by peer" in str(error)
    assert error.causes == {"here:1": BROKEN_OFF.found}
    assert lost_error("here:1", "it has been silent", is_silent=True).causes == {"here:1": NO_ANSWER.found}
