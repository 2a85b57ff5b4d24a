"""Blocks are sent in order in one call, and a peer that sends something else than it says is found out."""

import asyncio
from collections.abc import Callable, Iterator

import federated_language as fl
import numpy as np
import pytest
from catalogue import Catalogue, StartWorker
from data_reading import read, whole

from fedstack.errors import FedstackError, InvalidValueError, ProtocolVersionError, ResourceLimitError
from fedstack.executors.worker.receiving import receive
from fedstack.proto.data_service_pb2 import ListClientsRequest, ReadRequest, ReadResponse, SplitRange
from fedstack.service.data import Dataset, DataWorkerLimits
from fedstack.service.data.reading.readers import RemoteReader, reader_at
from fedstack.service.host.listening import connect
from fedstack.transport.peers import data_worker_stub
from fedstack.transport.peers.data_worker_stub import DATA_WORKER, DataWorkerStub
from fedstack.transport.peers.executor_stub import PROTOCOL
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.local_connection import LocalConnection
from fedstack.transport.peers.methods import Answers, ExchangeMethod
from fedstack.transport.wire.parcels import Incoming, Parcel

WALL = 20.0
NUMBERS = Dataset.range(40)


@pytest.fixture
def stub(start_worker: StartWorker) -> Iterator[DataWorkerStub]:
    worker = start_worker(limits=DataWorkerLimits(max_streams=3))
    stub = DataWorkerStub(connect(worker.target))
    yield stub
    io_loop.run_sync(stub.close())


def request(digest: bytes, **more: object) -> ReadRequest:
    what = ReadRequest(digest=digest, splits=SplitRange(first=0, last=40), num_splits=40, block_bytes=80)
    what.MergeFrom(ReadRequest(**more))  # type: ignore[arg-type]
    return what


@pytest.mark.parametrize("is_large", [False, True])
def test_the_blocks_of_a_call_have_numbers_and_the_last_says_so(
    is_large: bool, stub: DataWorkerStub, catalogue: Catalogue
) -> None:
    async def work() -> list[ReadResponse]:
        found: list[ReadResponse] = []
        async with stub.read(request(catalogue.register(NUMBERS)), is_large=is_large) as incoming:
            while not (found and found[-1].is_last):
                found.append((await receive(incoming, ReadResponse)).message)
            await incoming.read_into(())
        return found

    found = io_loop.run_sync(work(), WALL)
    assert [response.rows for response in found if response.rows] == [10] * 4
    assert [response.block for response in found if response.rows] == [0, 1, 2, 3]


def test_there_are_no_more_streams_than_there_may_be_and_those_that_are_left_give_back_their_places(
    stub: DataWorkerStub, catalogue: Catalogue
) -> None:
    dataset = Dataset.range(40).repeat()
    digest, reader = catalogue.register(dataset), RemoteReader(stub)
    what = ReadRequest(digest=digest, splits=SplitRange(whole=True), block_bytes=80)

    async def work() -> None:
        readings = [reader.open(what, dataset.element_type) for _ in range(4)]
        for reading in readings[:3]:
            assert await reading.next()
        with pytest.raises(
            ResourceLimitError, match=r"at most 3 streams of elements at a time, found one more.*--max-streams"
        ):
            await readings[3].next()
        await readings[0].close()
        for _ in range(int(WALL / 0.02)):
            again = reader.open(what, dataset.element_type)
            try:
                assert await again.next()
                break
            except ResourceLimitError:
                await asyncio.sleep(0.02)  # the worker has not heard of it yet
        for reading in [*readings, again]:
            await reading.close()
            assert not await reading.next()

    io_loop.run_sync(work(), 2 * WALL)


@pytest.mark.parametrize(
    ("dims", "dtype", "sent", "message"),
    [
        ([2, 20_000], 2, 200_000, "Expected 120000 more bytes of an array .*, found the end of the data"),
        ([2, 20_000], 2, 480_000, "Expected 0 bytes of data, as the header announced, found at least 160000"),
        ([2, 1 << 50], 2, 0, "Expected at most .* bytes of arrays in one message"),
        ([2, -1], 2, 0, "Expected non-negative dimensions"),
        ([2, 20_000], 99, 0, "found dtype number 99"),
    ],
)
def test_a_worker_that_sends_something_else_than_it_says_is_found_out(
    dims: list[int], dtype: int, sent: int, message: str
) -> None:
    async def answer(incoming: Incoming):
        await incoming.header()
        response = ReadResponse(block=0, rows=2, is_last=True, protocol=PROTOCOL)
        response.elements.sequences.rows.append(2)
        response.elements.sequences.row.rows.dim.extend(dims)
        response.elements.sequences.row.rows.dtype = dtype
        yield Parcel(response.SerializeToString(), [memoryview(bytes(sent))])

    reading = reader_of(answer).open(ReadRequest(), fl.TensorType(np.float64, [20_000]))

    async def read_all() -> None:
        while await reading.next():
            pass

    with pytest.raises(FedstackError, match=message):
        io_loop.run_sync(read_all(), WALL)


def reader_of(answer: Callable[[Incoming], Answers]) -> RemoteReader:
    connection = LocalConnection(lambda: {f"/{DATA_WORKER}/Read": ExchangeMethod(answer)}, "a worker")
    return RemoteReader(DataWorkerStub(connection))


@pytest.mark.parametrize(("block", "rows"), [(1, 1), (0, 2)])
def test_a_worker_that_contradicts_itself_is_found_out(block: int, rows: int) -> None:
    async def answer(incoming: Incoming):
        await incoming.header()
        response = ReadResponse(block=block, rows=rows, is_last=True, protocol=PROTOCOL)
        response.elements.sequences.rows.append(1)
        response.elements.sequences.row.column.int64_list.value.append(7)
        response.elements.sequences.row.column.shape.dim.append(1)
        response.elements.sequences.row.column.dtype = 9
        yield Parcel(response.SerializeToString())

    reading = reader_of(answer).open(ReadRequest(), NUMBERS.element_type)
    with pytest.raises(InvalidValueError, match=f"Expected block 0 from a worker to be a column of {rows} elements"):
        io_loop.run_sync(reading.next(), WALL)


@pytest.mark.parametrize("protocol", [0, PROTOCOL + 6])
def test_a_worker_of_another_protocol_is_found_out(protocol: int) -> None:
    async def answer(incoming: Incoming):
        await incoming.header()
        yield Parcel(ReadResponse(is_last=True, protocol=protocol, version="9.9").SerializeToString())

    reading = reader_of(answer).open(ReadRequest(), NUMBERS.element_type)
    with pytest.raises(ProtocolVersionError, match=f"found protocol {protocol} of fedstack .*9.9.* at a worker"):
        io_loop.run_sync(reading.next(), WALL)


@pytest.mark.parametrize("protocol", [0, PROTOCOL + 6])
def test_a_worker_refuses_a_reader_of_another_protocol(
    protocol: int, catalogue: Catalogue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, worker = catalogue.register(NUMBERS), start_worker()
    found = f"found protocol {protocol} of .* at the client"

    def another(message: ReadRequest) -> ReadRequest:
        message.protocol = protocol
        return message

    monkeypatch.setattr(data_worker_stub, "with_protocol", another)
    with pytest.raises(ProtocolVersionError, match=found):
        read(worker.target, whole(digest), NUMBERS.element_type)
    reader = reader_at(worker.target)
    with pytest.raises(ProtocolVersionError, match=found):
        io_loop.run_sync(reader.list_clients(ListClientsRequest(digest=digest)), WALL)
    io_loop.run_sync(reader.close(), WALL)


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
