"""A dispatcher that only has definitions, and knows who attends."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.errors import InvalidValueError
from fedstack.proto import data_service_pb2 as messages
from fedstack.proto.datasets_pb2 import DatasetDefinition
from fedstack.service.data import Dataset
from fedstack.service.data.datasets.definitions import definition_of
from fedstack.service.data.worker.worker_server import WorkerServer
from fedstack.service.executor.requests import control
from fedstack.transport.peers.dispatcher_stub import DISPATCHER
from fedstack.transport.peers.methods import Answers, DownloadMethod, Method, Service
from fedstack.transport.wire.parcels import Parcel

StartWorker = Callable[..., WorkerServer]


class Catalogue(Service):
    """Says what a dispatcher says to data workers."""

    def __init__(self, interval: float = 0.05, number: int = 1) -> None:
        self.definitions: dict[bytes, bytes] = {}
        self.defined = 0
        self.attended: list[messages.AttendRequest] = []
        self.first: Future[str] = Future()
        self.left: Future[None] = Future()
        self.refusal: Exception | None = None
        self._interval = interval
        self._number = number

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        attend = control(messages.AttendRequest, self._attend)
        return {DISPATCHER: {"Define": DownloadMethod(self._define), "Attend": attend}}

    async def _define(self, content: bytes) -> Answers:
        self.defined += 1
        digest = messages.DescribeDatasetRequest.FromString(content).digest
        definition = self.definitions.get(digest)
        if definition is None:
            raise InvalidValueError(f"Expected a dataset that is registered, found {digest.hex()[:16]}")
        await asyncio.sleep(0)
        header = messages.DatasetDescription(digest=digest, definition_bytes=len(definition))
        yield Parcel(header.SerializeToString(), [memoryview(definition)])

    async def _attend(self, request: messages.AttendRequest) -> messages.AttendResponse:
        if self.refusal is not None:
            raise self.refusal
        self.attended.append(request)
        if request.leaves:
            self.left.set_result(None)
        elif not self.first.done():
            self.first.set_result(request.worker.address)
        commit = messages.Commit(number=self._number)
        return messages.AttendResponse(commit=commit, interval_seconds=self._interval, lease_seconds=5.0)

    def register(self, dataset: Dataset) -> bytes:
        """Returns the digest of a dataset."""
        return self.register_definition(definition_of(dataset, Destination(takes_code=True)))

    def register_definition(self, definition: DatasetDefinition) -> bytes:
        """Returns the digest of a definition, which may be none."""
        content = definition.SerializeToString(deterministic=True)
        digest = hashlib.sha256(content).digest()
        self.definitions[digest] = content
        return digest
