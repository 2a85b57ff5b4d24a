"""Speaks to a dispatcher as consumers and workers do, one request at a time."""

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.membership.reaching import answered
from fedstack.proto import data_service_pb2 as messages
from fedstack.service.data import Dataset
from fedstack.service.data.datasets.definitions import definition_of
from fedstack.service.host.listening import connect
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import io_loop

_T = TypeVar("_T")
WALL = 30.0
OFF, DYNAMIC = messages.OpenPassRequest.OFF, messages.OpenPassRequest.DYNAMIC
AT_MOST_ONCE = messages.OpenPassRequest.AT_MOST_ONCE
AT_LEAST_ONCE = messages.OpenPassRequest.AT_LEAST_ONCE
EXACTLY_ONCE = messages.OpenPassRequest.EXACTLY_ONCE


def description(
    definition: bytes = b"a definition", num_splits: int = 10, **fields: Any
) -> messages.DatasetDescription:
    digest = hashlib.sha256(definition).digest()
    return messages.DatasetDescription(digest=digest, num_splits=num_splits, definition_bytes=len(definition), **fields)


class Peer:
    """Someone who calls a dispatcher, and waits for each answer."""

    def __init__(self, target: "str | Connection", credentials: ClientCredentials | None = None) -> None:
        self.stub = DispatcherStub(connect(target, credentials) if isinstance(target, str) else target)

    def ask(self, call: Callable[[DispatcherStub], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            return await call(self.stub)

        return io_loop.run_sync(run(), 60)

    def register(self, definition: bytes = b"a definition", num_splits: int = 10, **fields: Any) -> bytes:
        """Registers a dataset; returns its digest."""
        dataset = description(definition, num_splits, **fields)
        request = messages.RegisterDatasetRequest(dataset=dataset)
        return self.ask(lambda stub: stub.register(request, memoryview(definition))).digest

    def describe(self, dataset_id: str = "", digest: bytes = b"") -> messages.DatasetDescription:
        request = messages.DescribeDatasetRequest(dataset_id=dataset_id, digest=digest)
        return self.ask(lambda stub: stub.describe(request))

    def definition(self, digest: bytes, commit: messages.Commit | None = None) -> bytes:
        async def read(stub: DispatcherStub) -> bytes:
            request = messages.DescribeDatasetRequest(digest=digest, commit=commit)
            async with stub.define(request) as incoming:
                found = messages.DatasetDescription.FromString(await incoming.header())
                content = bytearray(found.definition_bytes)
                await incoming.read_into([memoryview(content)])
            return bytes(content)

        return self.ask(read)

    def attend(self, worker: bytes, address: str = "", leaves: bool = False) -> messages.AttendResponse:
        found = messages.DataWorkerAddress(worker=worker, address=address or f"{worker.decode()}.example:1")
        return self.ask(lambda stub: stub.attend(messages.AttendRequest(worker=found, leaves=leaves)))

    def register_dataset(self, dataset: Dataset) -> bytes:
        """Registers a dataset with its definition; returns its digest."""
        definition = definition_of(dataset, Destination(takes_code=True)).SerializeToString(deterministic=True)
        return self.register(definition, dataset.num_splits)

    def workers(self) -> list[str]:
        """Returns the addresses of the workers, once there is one."""
        end = time.monotonic() + WALL
        while not (found := self.ask(lambda stub: answered(stub, stub.list_workers, WALL)).worker):
            assert time.monotonic() < end, "no worker attends"
            time.sleep(0.01)
        return [worker.address for worker in found]

    def close(self) -> None:
        self.ask(lambda stub: stub.close())

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _list_workers(stub: DispatcherStub) -> Awaitable[messages.ListWorkersResponse]:
    return answered(stub, stub.list_workers, WALL)


class Consumer:
    """One consumer of a pass."""

    def __init__(self, peer: Peer, digest: bytes, name: bytes = b"consumer", **fields: Any) -> None:
        self.peer = peer
        request = messages.OpenPassRequest(digest=digest, consumer=name, **{"policy": DYNAMIC, **fields})
        self.opened = peer.ask(lambda stub: stub.open_pass(request))
        self.name = name
        self.number = self.opened.next_number
        self.commit = self.opened.commit
        self.version = 0
        self.last: messages.TakeRequest | None = None

    def take(
        self,
        want: int = 1,
        finished: Iterable[int] = (),
        given_back: Iterable[int] = (),
        wait_seconds: float = 0.0,
    ) -> messages.TakeResponse:
        self.last = messages.TakeRequest(
            commit=self.commit,
            pass_id=self.opened.pass_id,
            consumer=self.name,
            number=self.number,
            want=want,
            wait_seconds=wait_seconds,
            finished=finished,
            given_back=given_back,
            workers_version=self.version,
        )
        self.number += 1
        return self.repeat()

    def repeat(self) -> messages.TakeResponse:
        last = self.last
        assert last is not None
        answer = self.peer.ask(lambda stub: stub.take(last))
        self.version = answer.workers_version
        self.commit = answer.commit
        return answer

    def take_all(self) -> list[messages.SplitRange]:
        """Reads all that there is."""
        found: list[messages.SplitRange] = []
        finished: list[int] = []
        while True:
            answer = self.take(2, finished, wait_seconds=10.0)
            found += answer.range
            finished = [one.id for one in answer.range]
            if answer.is_exhausted:
                self.take(0, finished)
                return found

    def release(self, **fields: Any) -> None:
        request = messages.ReleasePassRequest(
            commit=self.commit, pass_id=self.opened.pass_id, consumer=self.name, **fields
        )
        self.peer.ask(lambda stub: stub.release(request))


def splits(ranges: Iterable[messages.SplitRange]) -> Sequence[int]:
    """Lists the splits in ranges, in order."""
    return sorted(split for one in ranges for split in range(one.first, one.last))
