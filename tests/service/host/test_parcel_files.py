"""Files in memory that come with calls over Unix sockets: what is in them is mapped, and nobody is hurt by them."""

import array
import asyncio
import contextlib
import gc
import os
import socket
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from await_until import await_until
from calling import WALL, on_loop
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstack.errors import WorkerUnavailableError
from fedstack.foundations.memory_files import HAS_SEALS, SealedFile
from fedstack.foundations.segments import Rows, joined
from fedstack.proto.streams_pb2 import StreamHello
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.peers.executor_stub import with_protocol
from fedstack.transport.peers.methods import Answers, ExchangeMethod, Method, Service
from fedstack.transport.stream import layout, pipes
from fedstack.transport.stream.dialing import SOCKET_SUFFIX
from fedstack.transport.stream.found_connection import FoundConnection
from fedstack.transport.stream.layout import SMALL_PARCEL_BYTES, Kind, ProtocolError, parcel_frame, read_parcel
from fedstack.transport.stream.send_queue import OutgoingData
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.parcels import Incoming, Parcel, ParcelFile, Span

pytestmark = pytest.mark.skipif(not HAS_SEALS, reason="only Linux has files that can be sealed")
PATH = "/fedstack.test.Maps/Read"
SIZES = (2 << 20, 3 << 20, 70_000, 1 << 20, 5)


class MappingService(Service):
    """Reads segments whose sizes are in the header; answers which were mapped, and with all their bytes.

    Args:
      wants: Whether it wants to have a segment mapped, given its index.
    """

    def __init__(self, wants: Callable[[int], bool] = lambda index: True) -> None:
        self.wants = wants
        self.hold: asyncio.Event | None = None
        self.entered = asyncio.Event()

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        return {"fedstack.test.Maps": {"Read": ExchangeMethod(self.read)}}

    async def read(self, incoming: Incoming) -> Answers:
        sizes = list(map(int, (await incoming.header()).split()))
        buffers: list[memoryview] = []
        mapped = ""
        for index, size in enumerate(sizes):
            found = incoming.mapped(sum(sizes[:index]), size) if self.wants(index) else None
            mapped += "-" if found is None else "m"
            buffers.append(np.empty(size, np.uint8).data if found is None else found)
        if self.hold is not None:
            self.entered.set()
            await self.hold.wait()
        await incoming.read_into(buffers)
        yield Parcel(mapped.encode(), [memoryview(b"".join(buffers))])


@contextlib.contextmanager
def serving(folder: Path, service: Service) -> Iterator[str]:
    with ServerThread(GrpcServer([service], unix_socket=folder / "it")) as thread:
        yield cast(GrpcServer, thread.server).url


@contextlib.asynccontextmanager
async def connected(url: str):
    connection = FoundConnection(parse_target(url), transport="stream")
    try:
        await connection.wait_ready(WALL)
        yield connection
    finally:
        await connection.close()


def segments(seed: int = 0) -> list[memoryview]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, size, dtype=np.uint8).data for size in SIZES]


def file_of(found: Sequence[memoryview], indices: Sequence[int]) -> ParcelFile:
    starts = [sum(map(len, found[:index])) for index in indices]
    file = SealedFile([found[index] for index in indices])
    return ParcelFile(file, [(s, len(found[i]), at) for s, i, at in zip(starts, indices, file.starts)])


def parcel_of(found: Sequence[memoryview], file: ParcelFile | None) -> Parcel:
    return Parcel(b" ".join(b"%d" % len(one) for one in found), found, file=file)


async def answer_of(connection: FoundConnection, parcel: Parcel) -> tuple[str, bytes]:
    """Returns which segments were mapped, and the bytes that the service has read."""
    incoming = Incoming(connection.exchange(PATH, parcel), on_heartbeat=lambda beat: None)
    mapped = await incoming.header()
    content = np.empty(sum(map(len, parcel.segments)), np.uint8)
    await incoming.read_into([content.data])
    return mapped.decode(), content.tobytes()


def files_open() -> int:
    """Returns how many files in memory this process, in which client and server run, has open or mapped."""
    gc.collect()
    count = Path("/proc/self/maps").read_text().count("memfd:fedstack")
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += "memfd:fedstack" in os.readlink(f"/proc/self/fd/{one}")
    return count


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        pytest.param(lambda index: True, "-m-m-", id="all"),
        pytest.param(lambda index: index != 3, "-m---", id="one of them"),
        pytest.param(lambda index: False, "-----", id="none"),
    ],
)
def test_what_is_in_a_file_is_mapped_and_the_rest_is_sent(tmp_path: Path, wants, expected: str) -> None:
    found = segments()

    async def work() -> None:
        async with connected(url) as connection:
            assert connection.passes_files
            for _ in range(3):
                answer = await answer_of(connection, parcel_of(found, file_of(found, [1, 3])))
                assert answer == (expected, joined(found))
            assert await answer_of(connection, parcel_of(found, None)) == ("-----", joined(found))

    before = files_open()
    with serving(tmp_path, MappingService(wants)) as url:
        on_loop(work)
        await_until(lambda: files_open() == before)


@pytest.mark.parametrize("indices", [[0], [4], [0, 1, 2, 3, 4]])
def test_any_of_the_segments_may_be_in_a_file(tmp_path: Path, indices: list[int]) -> None:
    found = segments()

    async def work() -> None:
        async with connected(url) as connection:
            mapped, content = await answer_of(connection, parcel_of(found, file_of(found, indices)))
            assert mapped == "".join("m" if index in indices else "-" for index in range(5))
            assert content == joined(found)

    with serving(tmp_path, MappingService()) as url:
        on_loop(work)


class _Open(SealedFile):
    """A file that its sender can still change."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("open", os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, size)


class _Short(SealedFile):
    """A file with fewer bytes than its sender says."""

    def __init__(self) -> None:
        super().__init__([memoryview(b"short")])


class _Pipe(SealedFile):
    """What is no file."""

    def __init__(self) -> None:
        self.descriptor, other = os.pipe()
        os.close(other)
        weakref.finalize(self, os.close, self.descriptor)


@pytest.mark.parametrize("make", [lambda: _Open(SIZES[1]), _Short, _Pipe], ids=["open", "short", "pipe"])
def test_a_file_that_cannot_be_relied_on_is_ignored(tmp_path: Path, make: Callable[[], SealedFile]) -> None:
    found = segments()

    async def work() -> None:
        file = make()
        async with connected(url) as connection:
            parcel = parcel_of(found, ParcelFile(file, [(SIZES[0], SIZES[1], 0)]))
            assert await answer_of(connection, parcel) == ("-----", joined(found))

    with serving(tmp_path, MappingService()) as url:
        on_loop(work)


def test_a_server_that_has_no_descriptors_left_is_sent_the_bytes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pipes, "_FILE_SPACE", 0)  # so that the system drops the descriptor, as it does then
    found = segments()

    async def work() -> None:
        async with connected(url) as connection:
            for _ in range(6):
                answer = await answer_of(connection, parcel_of(found, file_of(found, [1])))
                assert answer == ("-----", joined(found))

    with serving(tmp_path, MappingService()) as url:
        on_loop(work)


def test_calls_at_the_same_time_get_their_own_files(tmp_path: Path) -> None:
    async def one(connection: FoundConnection, number: int) -> None:
        found = segments(number)
        indices = [[], [1], [0, 3], [4]][number % 4]
        parcel = parcel_of(found, file_of(found, indices) if indices else None)
        mapped, content = await answer_of(connection, parcel)
        assert content == joined(found)
        assert mapped == "".join("m" if index in indices else "-" for index in range(5))

    async def work() -> None:
        async with connected(url) as connection:
            await asyncio.gather(*(one(connection, number) for number in range(24)))

    before = files_open()
    with serving(tmp_path, MappingService()) as url:
        on_loop(work)
        await_until(lambda: files_open() == before)


@pytest.mark.parametrize("ends", ["cancelled", "cut"])
def test_nothing_is_left_of_a_call_that_ends_early(tmp_path: Path, ends: str) -> None:
    found, service = segments(), MappingService()

    async def work() -> None:
        service.hold = asyncio.Event()
        async with connected(url) as connection:
            call = asyncio.ensure_future(answer_of(connection, parcel_of(found, file_of(found, [1, 3]))))
            await asyncio.wait_for(service.entered.wait(), WALL)
            if ends == "cancelled":
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            else:
                connection._stream._stream._pipe._socket.shutdown(socket.SHUT_RDWR)
                with pytest.raises(WorkerUnavailableError):
                    await call

    before = files_open()
    with serving(tmp_path, service) as url:
        on_loop(work)
        await_until(lambda: files_open() == before)


def test_memory_is_sent_over_tcp_where_files_cannot_be_passed() -> None:
    found = segments()

    async def work() -> None:
        async with connected(server.url) as connection:
            assert not connection.passes_files
            assert await answer_of(connection, parcel_of(found, file_of(found, [1]))) == ("-----", joined(found))

    with ServerThread(GrpcServer([MappingService()])) as thread:
        server = cast(GrpcServer, thread.server)
        on_loop(work)


def _send(client: socket.socket, content: bytes, *descriptors: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    client.sendmsg([content], rights)


def _call(spans: Sequence[Span], number: int = 1) -> bytes:
    parcel = Parcel(b"2000000", [memoryview(bytes(2_000_000))])
    buffers, _, _ = parcel_frame(number, parcel, 2_000_007, PATH, None, spans)
    return b"".join(buffers)


@pytest.mark.parametrize(
    ("frames", "count", "said"),
    [
        pytest.param(_call([(0, 1000, 0)]), 0, b"found none", id="a file that does not come"),
        pytest.param(_call([(1_999_000, 2000, 0)]), 1, b"in order", id="a part behind the end"),
        pytest.param(_call([(1 << 63, 1 << 63, 0)]), 1, b"in order", id="a part of 2^63 bytes"),
        pytest.param(_call([(0, 1000, 0), (999, 10, 0)]), 1, b"in order", id="parts that overlap"),
        pytest.param(_call([(0, 0, 0)]), 1, b"in order", id="an empty part"),
        pytest.param(layout.frame(Kind.PING) * 20, 20, b"further files", id="files without frames"),
        pytest.param(_call([]) + layout.count_frame(Kind.SKIP, 1, 10), 0, b"in a file", id="bytes skipped by a client"),
    ],
)
def test_a_client_that_breaks_the_rules_is_cut_off_and_others_are_served(
    tmp_path: Path, frames: bytes, count: int, said: bytes
) -> None:
    found = segments()

    async def work() -> None:
        async with connected(url) as connection:
            assert await answer_of(connection, parcel_of(found, file_of(found, [1]))) == ("-m---", joined(found))

    before = files_open()
    with serving(tmp_path, MappingService()) as url:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WALL)
            client.connect(f"{tmp_path}/it{SOCKET_SUFFIX}")
            _send(client, layout.frame(Kind.HELLO, 0, with_protocol(StreamHello()).SerializeToString()))
            assert client.recv(layout.HEADER_BYTES)[4] == Kind.HELLO
            file = SealedFile([memoryview(bytes(4000))])
            with contextlib.suppress(ConnectionError):
                for _ in range(max(1, count)):
                    _send(client, frames if count < 2 else frames[: layout.HEADER_BYTES], *[file.descriptor][:count])
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while content := client.recv(65536):
                    answer += content
            assert said in answer
        del file
        on_loop(work)
        await_until(lambda: files_open() == before)


@given(st.data())
def test_spans_come_back_from_the_frame(data: st.DataObject) -> None:
    size = data.draw(st.integers(SMALL_PARCEL_BYTES, 3 * SMALL_PARCEL_BYTES))
    cuts = sorted(data.draw(st.sets(st.integers(0, size), min_size=2, max_size=8)))
    spans = [(first, last - first, data.draw(st.integers(0, 1 << 40))) for first, last in zip(cuts[::2], cuts[1::2])]
    parcel = Parcel(b"head", [memoryview(bytes(size))])
    buffers, _, following = parcel_frame(7, parcel, size + 4, "/a/B", 2.0, spans)
    _, _, flags, path_bytes, _ = layout.FRAME_HEADER.unpack_from(b"".join(buffers))
    announced = read_parcel(flags, path_bytes, b"".join(buffers)[layout.HEADER_BYTES :])
    assert list(announced.spans) == spans
    assert (announced.header, announced.segment_bytes, following) == (b"head", size, size)
    short = b"".join(buffers)[layout.HEADER_BYTES : -data.draw(st.integers(1, 23))]
    with pytest.raises(ProtocolError):
        read_parcel(flags, path_bytes, short)


@settings(max_examples=200)
@given(st.data())
def test_what_is_skipped_is_not_sent_and_everything_else_is(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    content = np.random.default_rng(0).integers(0, 256, sum(sizes) + 60, dtype=np.uint8)
    ends = np.cumsum(sizes)
    rows = Rows([content[-60:].reshape(6, 10)[index] for index in range(6)])
    parts = [*(content[end - size : end].data for end, size in zip(ends, sizes)), rows]
    all_bytes = joined(parts)
    taken: list[bool] = []
    outgoing = OutgoingData(1, parts, len(all_bytes), lambda: taken.append(True))
    sent, expected, at = b"", b"", 0
    while outgoing.left:
        count = data.draw(st.integers(1, outgoing.left))
        if data.draw(st.booleans()):
            outgoing.skip(count)
        else:
            outgoing.granted += count
            while outgoing.granted:
                buffers, _ = outgoing.take()
                sent += b"".join(buffers)
            expected += all_bytes[at : at + count]
        at += count
    assert sent == expected


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_of_strangers_are_closed_with_their_connection(tmp_path: Path) -> None:
    file, found = SealedFile([memoryview(bytes(4000))]), segments()

    async def work() -> None:
        async with connected(url) as connection:
            await answer_of(connection, parcel_of(found, None))

    with serving(tmp_path, MappingService()) as url:
        on_loop(work)
        before = _descriptors()
        gc.disable()  # so that only what is closed is gone
        try:
            for _ in range(20):
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(f"{tmp_path}/it{SOCKET_SUFFIX}")
                    _send(client, b"\0", *[file.descriptor] * 3)
            on_loop(work)  # after all of them have been accepted
            await_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 1)
        finally:
            gc.enable()


def test_a_socket_whose_closing_blocks_holds_up_nobody(tmp_path: Path) -> None:
    found = segments()

    async def work() -> None:
        async with connected(url) as connection:
            assert await answer_of(connection, parcel_of(found, None)) == ("-----", joined(found))

    with serving(tmp_path, MappingService()) as url, socket.create_server(("127.0.0.1", 0)) as listener:
        filled = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        filled.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                filled.send(bytes(1 << 20))
        filled.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        with accepted:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"{tmp_path}/it{SOCKET_SUFFIX}")
                _send(client, b"\0", filled.fileno())
                os.close(filled.detach())  # so that the server closes the socket
            on_loop(work)
