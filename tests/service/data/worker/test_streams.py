"""Blocks are handed out by number, each once, as long as somebody asks, and not many are made before that."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from catalogue import Catalogue, StartWorker

from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.errors import FedstackError, InvalidValueError, ResourceLimitError, StaleSessionError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.worker.received import receive
from fedstack.proto.data_service_pb2 import ReadRequest, ReadResponse, SplitRange
from fedstack.service.data import Dataset, DataWorkerLimits
from fedstack.service.data.serving.local_servers import connect
from fedstack.service.data.worker.streams import AHEAD, AheadRoom, Block, Stream, StreamTable
from fedstack.transport.peers.data_worker_stub import DATA_WORKER, DataWorkerStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.parcels import Parcel

WALL = 20.0
NUMBERS = Dataset.range(40)


class Counted:
    """Makes blocks, and counts them; each may wait to be let go."""

    def __init__(self, number: int, size: int = 1) -> None:
        self.made = self.closed = 0
        self.changed = threading.Condition()
        self.blocks = self._make(number, size)

    def _make(self, number: int, size: int) -> Iterator[Block]:
        try:
            for place in range(number):
                self._count("made")
                yield Block(Parcel(b"%d" % place), place == number - 1, size)
        finally:
            self._count("closed")

    def _count(self, what: str) -> None:
        with self.changed:
            setattr(self, what, getattr(self, what) + 1)
            self.changed.notify_all()

    async def reaches(self, condition: Callable[[], bool]) -> None:
        def wait() -> None:
            with self.changed:
                assert self.changed.wait_for(condition, WALL)

        await asyncio.to_thread(wait)


@pytest.fixture
def threads() -> Iterator[LeafThreads]:
    threads = LeafThreads()
    yield threads
    threads.close()


def stream_of(counted: Counted, threads: LeafThreads, room: int = 1 << 30) -> Stream:
    return Stream(counted.blocks, threads, WorkScope(), AheadRoom(room))


async def content(future: "asyncio.Future[Block | None]") -> bytes | None:
    block = await asyncio.wait_for(future, WALL)
    return None if block is None else block.parcel.header


def test_blocks_come_by_number_in_whatever_order_they_are_asked_for(threads: LeafThreads) -> None:
    async def work() -> None:
        stream = stream_of(Counted(5), threads)
        asked = {number: stream.ask(number) for number in (2, 0, 1)}
        assert [await content(asked[number]) for number in range(3)] == [b"0", b"1", b"2"]
        rest = [stream.ask(number) for number in (6, 4, 3, 5)]
        assert [await content(future) for future in rest] == [None, b"4", b"3", None]

    asyncio.run(work())


def test_a_few_blocks_are_made_ahead_and_no_more(threads: LeafThreads) -> None:
    async def work() -> None:
        counted = Counted(1000)
        stream = stream_of(counted, threads)
        for number in range(20):
            await content(stream.ask(number))
            await counted.reaches(lambda: counted.made >= number + 1)  # noqa: B023
        await counted.reaches(lambda: counted.made == 20 + AHEAD)
        await asyncio.sleep(0.05)
        assert counted.made == 20 + AHEAD

    asyncio.run(work())


def test_without_room_for_blocks_that_nobody_waits_for_each_is_made_when_it_is_asked_for(threads: LeafThreads) -> None:
    async def work() -> None:
        room = AheadRoom(10)
        first, second = Counted(100, size=10), Counted(100, size=10)
        streams = [Stream(counted.blocks, threads, WorkScope(), room) for counted in (first, second)]
        await content(streams[0].ask(0))
        await first.reaches(lambda: first.made == 2)  # one is ahead, and takes all the room
        for number in range(10):
            assert await content(streams[1].ask(number)) == b"%d" % number
        await asyncio.sleep(0.05)
        assert (first.made, second.made) == (2, 10)
        streams[0].end()
        await content(streams[1].ask(10))
        await second.reaches(lambda: second.made > 11)
        streams[1].end()
        assert not room.is_full

    asyncio.run(work())


def test_a_stream_that_ends_closes_what_makes_its_blocks(threads: LeafThreads) -> None:
    async def work() -> None:
        counted = Counted(1000)
        stream = stream_of(counted, threads)
        await content(stream.ask(0))
        waiting = stream.ask(60)
        stream.end()
        with pytest.raises(StaleSessionError, match="begin a new one with block 0"):
            await content(waiting)
        await counted.reaches(lambda: counted.closed == 1)
        with pytest.raises(StaleSessionError):
            stream.ask(1)

    asyncio.run(work())


def test_a_stream_that_ends_just_after_a_turn_closes_what_makes_its_blocks_too(threads: LeafThreads) -> None:
    async def work() -> None:
        counted = Counted(1000)
        stream = stream_of(counted, threads)
        asked = stream.ask(0)
        job = stream._job
        assert job is not None
        job.exception(WALL)  # the thread has done its turn, and the loop has not heard of it
        stream.end()
        with pytest.raises(StaleSessionError):
            await content(asked)
        await counted.reaches(lambda: counted.closed == 1)

    asyncio.run(work())


def test_whoever_waits_no_more_ends_the_stream(threads: LeafThreads) -> None:
    async def work() -> None:
        gate, closed = threading.Event(), threading.Event()

        def blocks() -> Iterator[Block]:
            try:
                gate.wait(WALL)
                yield Block(Parcel(b""), False, 1)
            finally:
                closed.set()

        stream = Stream(blocks(), threads, WorkScope(), AheadRoom(1))
        asked, other = stream.ask(0), stream.ask(1)
        asked.cancel()
        with pytest.raises(StaleSessionError):
            await content(other)
        gate.set()
        assert await asyncio.to_thread(closed.wait, WALL)

    asyncio.run(work())


def test_an_error_comes_after_the_blocks_before_it_and_stays(threads: LeafThreads) -> None:
    async def work() -> None:
        def blocks() -> Iterator[Block]:
            yield Block(Parcel(b"0"), False, 1)
            raise InvalidValueError("no more")

        stream = Stream(blocks(), threads, WorkScope(), AheadRoom(1))
        second = stream.ask(1)
        assert await content(stream.ask(0)) == b"0"
        for future in (second, stream.ask(2), stream.ask(3)):
            with pytest.raises(InvalidValueError, match="no more"):
                await content(future)

    asyncio.run(work())


@pytest.mark.parametrize("number", [0, 1, 2**40, 66])
def test_a_block_is_asked_for_once_and_not_long_before_its_turn(number: int, threads: LeafThreads) -> None:
    async def work() -> None:
        stream = stream_of(Counted(5), threads)
        await content(stream.ask(0))
        later = stream.ask(1)
        with pytest.raises(InvalidValueError, match="Expected block . of a stream, or one of the 64 after it"):
            stream.ask(number)
        assert await content(later) == b"1"

    asyncio.run(work())


def test_streams_that_nobody_asks_end_with_their_lease_and_give_back_their_places(threads: LeafThreads) -> None:
    async def work() -> None:
        table = StreamTable(2, 0.05, lambda found: ResourceLimitError(f"no place: {found}"))
        counted = [Counted(1000), Counted(1000)]
        for number, one in enumerate(counted):
            table.open(b"%d" % number, "what", "", lambda one=one: stream_of(one, threads))
        with pytest.raises(ResourceLimitError, match="no place: one more"):
            table.open(b"2", "what", "", lambda: stream_of(Counted(1), threads))
        for number in range(2):
            found = table.find(b"%d" % number, "what")
            assert found is not None
            found.ask(0)
        for one in counted:
            await one.reaches(lambda one=one: one.closed == 1)
        assert len(table) == 0
        with pytest.raises(StaleSessionError, match=r"nobody asked for its blocks for 0.05 s"):
            table.find(b"0", "what")
        table.open(b"2", "what", "", lambda: stream_of(Counted(1), threads))
        table.end_all()

    asyncio.run(work())


# Over a connection.


@pytest.fixture
def stub(start_worker: StartWorker) -> Iterator[DataWorkerStub]:
    worker = start_worker(limits=DataWorkerLimits(stream_lease_seconds=0.5, max_streams=3))
    stub = DataWorkerStub(connect(worker.target))
    yield stub
    io_loop.run_sync(stub.close())


def request(digest: bytes, block: int, stream: bytes = b"a stream", **more: object) -> ReadRequest:
    what = ReadRequest(digest=digest, stream=stream, block=block, num_splits=40, block_bytes=80)
    what.splits.CopyFrom(SplitRange(first=0, last=40))
    what.MergeFrom(ReadRequest(**more))  # type: ignore[arg-type]
    return what


async def rows(stub: DataWorkerStub, what: ReadRequest) -> tuple[int, bool]:
    async with stub.read(what) as incoming:
        received = await receive(incoming, ReadResponse)
        await received.end()
        return received.message.rows, received.message.is_last


def asked(stub: DataWorkerStub, *requests: ReadRequest) -> list[tuple[int, bool] | FedstackError]:
    async def work() -> list[tuple[int, bool] | FedstackError]:
        found: list[tuple[int, bool] | FedstackError] = []
        for what in requests:
            try:
                found.append(await rows(stub, what))
            except FedstackError as error:
                found.append(error)
        return found

    return io_loop.run_sync(work(), WALL)


def test_blocks_after_the_last_one_are_empty(stub: DataWorkerStub, catalogue: Catalogue) -> None:
    digest = catalogue.register(NUMBERS)
    found = asked(stub, *(request(digest, number) for number in range(6)))
    assert found[:3] == [(10, False)] * 3
    assert found[3] in ((10, True), (10, False))
    assert found[4:] == [(0, True)] * 2


def test_what_has_been_asked_for_before_is_refused_and_what_comes_next_is_read(
    stub: DataWorkerStub, catalogue: Catalogue
) -> None:
    digest = catalogue.register(NUMBERS)
    first, doubled, again, far, second = asked(stub, *(request(digest, number) for number in (0, 0, 0, 1000, 1)))
    assert (first, second) == ((10, False), (10, False))
    for refused in (doubled, again, far):
        assert isinstance(refused, InvalidValueError)
        assert "Expected block 1 of a stream" in str(refused)


def test_a_stream_begins_with_block_0_and_goes_on_with_the_same_elements(
    stub: DataWorkerStub, catalogue: Catalogue
) -> None:
    digest, other = catalogue.register(NUMBERS), catalogue.register(NUMBERS.prefetch(1))
    lost, _, *others = asked(
        stub,
        request(digest, 1),
        request(digest, 0),
        request(digest, 1, first_element=1),
        request(digest, 1, num_splits=40, client=[b"a client"]),
        request(other, 1),
    )
    assert isinstance(lost, StaleSessionError)
    for error in others:
        assert isinstance(error, InvalidValueError)
        assert "Expected a request for the same elements" in str(error)


def test_a_stream_that_is_ended_or_forgotten_is_not_there_any_more(stub: DataWorkerStub, catalogue: Catalogue) -> None:
    digest = catalogue.register(NUMBERS)
    _, ended, after = asked(stub, request(digest, 0), request(digest, 0, ends=True), request(digest, 1))
    assert ended == (0, True)
    assert isinstance(after, StaleSessionError)

    async def forgotten() -> None:
        await rows(stub, request(digest, 0))
        with pytest.raises(StaleSessionError, match="nobody asked for its blocks for 0.5 s"):
            await asyncio.sleep(0.8)
            await rows(stub, request(digest, 1))

    io_loop.run_sync(forgotten(), WALL)


def test_there_are_no_more_streams_than_there_may_be(stub: DataWorkerStub, catalogue: Catalogue) -> None:
    digest = catalogue.register(NUMBERS)
    *opened, refused = asked(stub, *(request(digest, 0, b"%d" % number) for number in range(4)))
    assert opened == [(10, False)] * 3
    assert isinstance(refused, ResourceLimitError)
    assert "Expected at most 3 streams of elements at a time, found one more" in str(refused)
    assert "--max-streams" in str(refused)


@pytest.mark.parametrize("stream", [b"", bytes(65)])
def test_ids_of_streams_are_short(stream: bytes, stub: DataWorkerStub, catalogue: Catalogue) -> None:
    (refused,) = asked(stub, request(catalogue.register(NUMBERS), 0, stream))
    assert isinstance(refused, InvalidValueError)
    assert "Expected 1 to 64 bytes as the id of a stream" in str(refused)


@pytest.mark.parametrize("header", [b"\xff" * 20, b"", np.random.default_rng(1).bytes(5000)])
def test_bytes_that_are_no_request_are_refused(header: bytes, stub: DataWorkerStub) -> None:
    async def work() -> None:
        parcel = Parcel(header, [memoryview(b"and more")])
        answer = await stub.connection.ask(f"/{DATA_WORKER}/Read", parcel, WALL, "the worker")
        assert not isinstance(answer, Parcel)
        async for _ in answer:
            pass

    with pytest.raises(FedstackError):
        io_loop.run_sync(work(), WALL)
