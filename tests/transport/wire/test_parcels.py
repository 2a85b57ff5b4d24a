"""A parcel arrives whole by every way there is, and whose memory it is in is no question at any time."""

import asyncio
import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.errors import InvalidValueError
from fedstack.foundations.segments import Rows
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.methods import DownloadMethod, ExchangeMethod, Service, UploadMethod
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.frames import Data, Header, Heartbeat, parse_frame
from fedstack.transport.wire.parcels import Incoming, Parcel, frames_of, pieces_of

LIMIT_SECONDS = 30
NAME = "fedstack.test.Parcels"


async def nothing():
    pass


@pytest.fixture(scope="module", autouse=True)
def started_loop():
    """The thread of the loop stays, as it is for the whole process."""
    io_loop.run_sync(nothing(), LIMIT_SECONDS)


def run(work):
    """Runs a test's coroutine where connections live."""
    return io_loop.run_sync(work, LIMIT_SECONDS)


async def each(pieces):
    for piece in pieces:
        yield piece


class ParcelService(Service):
    """Sends back what it gets, from memory of its own."""

    def __init__(self):
        self.sent = asyncio.Event()
        self.sources = []

    @property
    def methods(self):
        kinds = {
            "Upload": UploadMethod(self.upload),
            "Download": DownloadMethod(self.download),
            "Exchange": ExchangeMethod(self.exchange),
            "Refuse": ExchangeMethod(self.refuse),
        }
        return {NAME: kinds}

    async def upload(self, incoming):
        content = np.empty(int(await incoming.header()), np.uint8)
        await incoming.read_into([content.data])
        return content.tobytes()

    async def download(self, request):
        source = np.full(int(request), 7, np.uint8)
        self.sources.append(source)
        yield Heartbeat(done=1)
        yield Parcel(request, [source.data], chunk_bytes=1000)
        self.sent.set()

    async def exchange(self, incoming):
        content = np.frombuffer(await self.upload(incoming), np.uint8)
        yield Parcel(b"%d" % content.nbytes, [content.data], chunk_bytes=1000)

    async def refuse(self, incoming):
        header = await incoming.header()
        raise InvalidValueError(f"Expected less, found {header.decode()}")
        yield Parcel(b"")


@pytest.fixture(params=["memory", "grpc"])
def way(request):
    """A service and a connection to it."""

    async def new_service():
        return ParcelService()

    service = run(new_service())
    if request.param == "memory":
        yield service, InMemoryConnection(service)
        return
    with ServerThread(GrpcServer([service])) as server:

        async def dial():
            return GrpcConnection(parse_target(server.target))

        connection = run(dial())
        yield service, connection
        run(connection.close())


def path(method):
    return f"/{NAME}/{method}"


def test_a_parcel_goes_there_and_one_comes_back(way):
    _, connection = way
    content = np.arange(100_000, dtype=np.uint8)

    async def work():
        parcel = Parcel(b"100000", [content[:5].data, Rows(list(content[5:10].reshape(5, 1))), content[10:].data], 1000)
        assert await connection.upload(path("Upload"), parcel, LIMIT_SECONDS) == content.tobytes()
        answer = Incoming(connection.exchange(path("Exchange"), parcel))
        back = np.empty(int(await answer.header()), np.uint8)
        await answer.read_into([back.data])
        return back

    assert np.array_equal(run(work()), content)


def test_a_method_goes_on_when_its_parcel_has_been_sent_and_nothing_keeps_its_memory(way):
    service, connection = way

    async def work():
        beats = []
        answer = Incoming(connection.download(path("Download"), b"50000"), on_heartbeat=beats.append)
        buffer = bytearray(int(await answer.header()))
        await answer.read_into([memoryview(buffer)])
        await service.sent.wait()
        assert bytes(buffer) == b"\7" * 50_000
        assert beats == [Heartbeat(done=1)]

    run(work())
    source = weakref.ref(service.sources.pop())
    gc.collect()
    assert source() is None


def test_a_buffer_is_the_receivers_alone_when_it_has_been_read_into(way):
    _, connection = way
    content = np.zeros(5000, np.uint8)

    async def work():
        answer = Incoming(connection.exchange(path("Exchange"), Parcel(b"5000", [content.data])))
        back = bytearray(int(await answer.header()))
        await answer.read_into([memoryview(back)])
        return back

    back = run(work())
    content[:] = 9  # what was sent is the sender's again
    assert bytes(back) == bytes(5000)
    gc.collect()
    back.extend(b"more")  # a buffer to which anybody still referred could not grow


def test_what_a_header_announces_can_be_refused_before_there_is_memory_for_it(way):
    _, connection = way
    asked = []

    class Lazy:
        """Would not be sent as a whole in any time."""

        def __iter__(self):
            for _ in range(1 << 30):
                asked.append(1)
                yield memoryview(bytes(1 << 20))

    async def work():
        async for _ in connection.exchange(path("Refuse"), Parcel(b"too much", Lazy())):
            pass

    with pytest.raises(InvalidValueError, match="Expected less, found too much"):
        run(work())
    assert len(asked) < 1000


def test_leaving_an_answer_ends_the_method(way):
    service, connection = way

    async def work():
        pieces = connection.download(path("Download"), b"50000000")
        await anext(pieces)
        await pieces.aclose()

    run(work())
    assert not service.sent.is_set()


@given(sizes=st.lists(st.integers(0, 50), max_size=6), rows=st.integers(1, 9), chunk_bytes=st.integers(1, 60))
def test_frames_and_pieces_of_a_parcel_say_the_same(sizes, rows, chunk_bytes):
    random = np.random.default_rng(1)
    arrays = [random.integers(0, 256, size, np.uint8) for size in sizes]
    segments = [array.data for array in arrays] + [Rows(list(random.integers(0, 256, (rows, 7), np.uint8)))]
    parcel = Parcel(b"header", segments, chunk_bytes)
    framed, handed = [parse_frame(frame) for frame in frames_of(parcel)], list(pieces_of(parcel))
    assert framed[0] == handed[0] == Header(b"header")
    assert b"".join(piece.data for piece in framed[1:]) == b"".join(piece.data for piece in handed[1:])


def test_large_segments_are_handed_on_and_not_copied():
    array, rows = np.zeros(1000), [np.zeros(1000), np.ones(1000)]
    pieces = list(pieces_of(Parcel(b"", [array.data.cast("B"), Rows(rows)], chunk_bytes=8000)))
    assert [np.shares_memory(piece.data, a) for piece, a in zip(pieces[1:], [array, *rows])] == [True] * 3


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([], "the end of the stream"),
        ([Data(memoryview(b"a"))], "a Data"),
        ([Heartbeat()], "a Heartbeat"),
        ([Header(b""), Header(b"")], "a Header"),
        ([Header(b""), Heartbeat()], "a Heartbeat"),
    ],
)
async def test_what_is_no_parcel_is_refused(pieces, found):
    incoming = Incoming(each(pieces))
    with pytest.raises(InvalidValueError, match=f"Expected a header followed by data, found {found}"):
        await incoming.header()
        await incoming.read_into([])


async def test_heartbeats_are_told_of_where_they_may_come():
    beats = []
    incoming = Incoming(
        each([Heartbeat(1), Header(b"h"), Heartbeat(2), Data(memoryview(b"ab"))]), on_heartbeat=beats.append
    )
    assert await incoming.header() == b"h"
    buffer = bytearray(2)
    await incoming.read_into([memoryview(buffer)])
    assert (bytes(buffer), beats) == (b"ab", [Heartbeat(1), Heartbeat(2)])
