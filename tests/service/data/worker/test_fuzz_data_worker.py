"""Whatever a data worker is sent, it answers with a status that says what is wrong, and reads on."""

import asyncio
import contextlib
import random
from collections import Counter

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from catalogue import Catalogue, StartWorker
from data_reading import read, some
from fuzz_requests import Request
from fuzz_spoiling import Spoiler

from fedstack.errors import FedstackError, ResourceLimitError
from fedstack.proto.data_service_pb2 import ReadRequest, SplitRange
from fedstack.service.data import Dataset, DataWorkerLimits
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.data_worker_stub import DATA_WORKER
from fedstack.transport.peers.executor_stub import PROTOCOL
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.frames import header_frame
from fedstack.transport.wire.parcels import Parcel, write_whole
from fedstack.transport.wire.status import Code, code_of

WALL = 20.0
AT_ONCE = 8
REQUESTS = 150
HUGE = (2**31, 2**63 - 1, 2**64 - 1)
BUGS = {Code.INTERNAL, Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.DATA_LOSS}


class DataRequest(Request):
    """A call of a data worker."""

    @property
    def path(self) -> str:
        return f"/{DATA_WORKER}/{self.method}"

    @property
    def kind(self) -> str:
        return "exchange" if self.method == "Read" else "unary"


class Drawer:
    """Draws requests: valid ones, but for a number or an id now and then."""

    def __init__(self, choose: random.Random, digests: list[bytes]) -> None:
        self._choose = choose
        self._digests = digests

    def request(self) -> Request:
        choose = self._choose
        digest = choose.choice(self._digests)
        what = ReadRequest(digest=digest, num_splits=1000, block_bytes=choose.choice([800, 1 << 20]), protocol=PROTOCOL)
        what.splits.CopyFrom(SplitRange(first=0, last=1000))
        fate = choose.random()
        if fate < 0.5:
            field = choose.choice(["num_splits", "first_element", "block_bytes"])
            setattr(what, field, choose.choice([0, 1, 999, 1001, *HUGE]))
        elif fate < 0.6:
            setattr(what.splits, choose.choice(["first", "last", "id"]), choose.choice([0, 1, 1001, *HUGE]))
        elif fate < 0.7:
            what.digest = choose.choice([b"", bytes(32), choose.randbytes(32), digest[:31]])
        elif fate < 0.75:
            what.splits.whole = True
        elif fate < 0.8:
            what.client.extend([b"a client", b""])
        content = what.SerializeToString()
        if choose.random() < 0.5:
            return DataRequest("Read", [header_frame(content)])
        return DataRequest("ReadWhole", [write_whole(Parcel(content))])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_sent_is_answered_and_others_read_on(
    seed: int, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    datasets = Dataset.range(1000), Dataset.from_arrays({"a": np.zeros((1000, 3)), "b": np.full(1000, "ä")})
    digests = [catalogue.register(dataset) for dataset in datasets]
    worker = start_worker(limits=DataWorkerLimits(max_streams=20))
    codes: Counter[str] = Counter()
    bugs: list[str] = []

    async def talk(number: int) -> None:
        choose = random.Random(f"{seed} {number}")
        drawer, spoiler = Drawer(choose, digests), Spoiler(choose)
        connection = GrpcConnection(parse_target(worker.target))
        for _ in range(REQUESTS // AT_ONCE):
            request, fate = drawer.request(), choose.random()
            if fate < 0.1:
                request = DataRequest(request.method, spoiler.garbage(request.method).frames or [b""])
            elif fate < 0.4:
                request = DataRequest(request.method, spoiler.spoilt(request).frames)
            try:
                await asyncio.wait_for(answer(connection, request), WALL)
                codes["OK"] += 1
            except (FedstackError, asyncio.TimeoutError) as error:
                code = Code.DEADLINE_EXCEEDED if isinstance(error, asyncio.TimeoutError) else code_of(error)
                codes[code.name] += 1
                if code in BUGS:
                    bugs.append(f"{code.name}: {error}\n  in answer to {request}")
        await connection.close()

    async def work() -> None:
        await asyncio.gather(*map(talk, range(AT_ONCE)))

    io_loop.run_sync(work(), 10 * WALL)
    assert not bugs
    assert codes["OK"] > 10
    assert codes["INVALID_ARGUMENT"] > 10
    found: list[object] = []

    def reads_on() -> bool:
        with contextlib.suppress(ResourceLimitError):  # streams of clients that have left end soon
            found.extend(read(worker.target, some(digests[0], 1000, 3, 9), fl.TensorType(np.int64)))
        return bool(found)

    await_until(reads_on)
    assert found == list(range(3, 9))


async def answer(connection: GrpcConnection, request: Request) -> None:
    if request.kind == "unary":
        await connection.unary(request.path, request.frames[0], WALL)
    else:
        async for _ in connection.stream(request.path, request.frames):
            pass
