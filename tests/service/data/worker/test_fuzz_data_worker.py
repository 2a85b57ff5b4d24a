"""Whatever a data worker is sent, it answers with a status that says what is wrong, and reads on."""

import asyncio
import contextlib
import itertools
import json
import random
from collections import Counter
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from catalogue import Catalogue, StartWorker
from data_reading import read, some
from fuzz_requests import Request
from fuzz_spoiling import Spoiler

from fedstack.computations.codec.stored_values import StoredFile, StoredValue
from fedstack.data.client_states.record_layout import RecordLayout
from fedstack.data.client_states.state_shards import FileShard
from fedstack.data.client_states.store_folders import ClientStateFolders, name_store
from fedstack.errors import FedstackError, ResourceLimitError
from fedstack.proto.data_service_pb2 import ReadRequest, ReadStatesRequest, SplitRange, WriteStatesRequest
from fedstack.proto.extensions_pb2 import FindStoresRequest, Packed
from fedstack.service.data import Dataset, DataWorkerLimits
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.data_worker_stub import DATA_WORKER
from fedstack.transport.peers.executor_stub import PROTOCOL
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.frames import data_frames, header_frame
from fedstack.transport.wire.parcels import Parcel, write_whole
from fedstack.transport.wire.status import Code, code_of

WALL = 20.0
AT_ONCE = 8
REQUESTS = 150
STATE = fl.TensorType(np.float32, [3])
HUGE = (2**31, 2**63 - 1, 2**64 - 1)
BUGS = {Code.INTERNAL, Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.CANCELLED}


class DataRequest(Request):
    """A call of a data worker."""

    @property
    def path(self) -> str:
        return f"/{DATA_WORKER}/{self.method}"

    @property
    def kind(self) -> str:
        return {"Read": "exchange", "WriteStates": "exchange", "ReadStates": "download"}.get(self.method, "unary")


class Drawer:
    """Draws requests: valid ones, but for a number or an id now and then."""

    def __init__(self, choose: random.Random, digests: list[bytes], store: str, digest: int) -> None:
        self._choose = choose
        self._digests = digests
        self._store = store
        self._digest = digest
        self._files = itertools.count()

    def request(self) -> Request:
        return self._states() if self._choose.random() < 0.3 else self._elements()

    def _states(self) -> Request:
        choose = self._choose
        store = choose.choice([self._store, self._store, "", "../x"])
        kind, clients = STATE.to_proto(), choose.choice([1, 2, 1000])
        fate = choose.random()
        if fate < 0.1:
            return DataRequest("FindStores", [FindStoresRequest(id=[store, "0" * 32]).SerializeToString()])
        if fate < 0.5:
            name = choose.choice(["first.states", "first.states", "../first.states", "", "x" * 1000])
            states = Packed.Stored(store=store, type=kind, file=[Packed.Stored.File(name=name, digest=self._digest)])
            states.record.extend(choose.choices([1, 1, 1, 0, 2, 1 << 31], k=clients))
            return DataRequest("ReadStates", [ReadStatesRequest(states=states, protocol=PROTOCOL).SerializeToString()])
        name, rows = f"{id(self)}-{next(self._files)}", choose.choice([clients, clients, clients, 0, *HUGE])
        own = choose.choice([json.dumps(list(range(clients))).encode(), b"[", b"[1, 1]", b"{}"])
        request = WriteStatesRequest(store=store, type=kind, name=name, clients=own, rows=rows, protocol=PROTOCOL)
        data = data_frames([memoryview(bytes(16 * clients))])
        return DataRequest("WriteStates", [header_frame(request.SerializeToString()), *data])

    def _elements(self) -> Request:
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
    seed: int, catalogue: Catalogue, start_worker: StartWorker, tmp_path: Path
) -> None:
    store, layout = name_store(tmp_path), RecordLayout.of(STATE)
    first = FileShard.written(tmp_path / "first.states", layout, [0], layout.empty(1))
    datasets = Dataset.range(1000), Dataset.from_arrays({"a": np.zeros((1000, 3)), "b": np.full(1000, "ä")})
    digests = [catalogue.register(dataset) for dataset in datasets]
    worker = start_worker(limits=DataWorkerLimits(max_streams=20), client_states=[tmp_path])
    codes: Counter[str] = Counter()
    bugs: list[str] = []

    async def talk(number: int) -> None:
        choose = random.Random(f"{seed} {number}")
        drawer, spoiler = Drawer(choose, digests, store, first.digest), Spoiler(choose)
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
    stores, file = ClientStateFolders([tmp_path]), StoredFile(store, first.name, first.digest, STATE, None)
    assert len(stores.read([StoredValue(file, 0)])) == 1, "nothing was changed"
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*") if path.is_file())
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
