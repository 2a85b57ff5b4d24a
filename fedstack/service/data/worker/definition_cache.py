"""Caches the datasets that a data worker reads. The worker requests their definitions from its dispatcher by digest."""

import asyncio
import hashlib

import attrs
import numpy as np
from google.protobuf.message import DecodeError

from fedstack.computations.leaves.work_scope import WorkScope, set_scope
from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.executors.worker.receiving import receive
from fedstack.foundations.caches import BoundedCache
from fedstack.foundations.traceback_filter import consume_exception
from fedstack.membership.reaching import answered
from fedstack.proto.data_service_pb2 import Commit, DatasetDescription, DescribeDatasetRequest
from fedstack.proto.datasets_pb2 import DatasetDefinition
from fedstack.service.data.datasets.client_datasets import ClientDatasets
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.datasets.definitions import read_definition
from fedstack.service.data.datasets.pipeline import Division
from fedstack.service.host.limits import DataWorkerLimits, exceeded
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import start_apart

_MOST_DATASETS = 1000
_DIGEST_BYTES = 32
# The time to wait for an unavailable dispatcher before a read fails.
_DISPATCHER_SECONDS = 30.0


@attrs.frozen(eq=False)
class CachedDataset:
    """A dataset, and how the work of reading it is divided.

    Attributes:
      dataset: The dataset.
      division: The division of the work of reading the dataset.
      client_column: The member of the elements that contains the client's id; empty if the dataset is not registered by
        client.
    """

    dataset: Dataset
    division: Division
    client_column: str = ""

    @property
    def clients(self) -> ClientDatasets[Dataset]:
        """The dataset by client.

        Raises:
          InvalidValueError: If the dataset is not registered by client.
        """
        if not self.client_column:
            raise InvalidValueError(
                "Expected a dataset that is registered by client, found a dataset that is registered as a whole; "
                "register the result of its by_client(column)"
            )
        return self.dataset.by_client(self.client_column)


class DefinitionCache:
    """A cache of the most recently read datasets, which must be used on the event loop of its stub.

    Args:
      dispatcher: The stub for calls to the dispatcher, which has the definitions.
      scope: The scope in which definitions are read. Its policy determines which functions they may contain.
      limits: The limits of the data worker, which include the maximum size of each definition and of all definitions
        together.
    """

    def __init__(self, dispatcher: DispatcherStub, scope: WorkScope, limits: DataWorkerLimits) -> None:
        self._dispatcher = dispatcher
        self._scope = scope
        self._limits = limits
        self._known: BoundedCache[bytes, CachedDataset] = BoundedCache(_MOST_DATASETS, limits.max_definition_bytes)
        self._coming: dict[bytes, asyncio.Task[CachedDataset]] = {}

    async def find(self, digest: bytes, commit: Commit | None = None) -> CachedDataset:
        """Returns the dataset with a digest.

        Args:
          digest: The digest of the dataset's definition.
          commit: The latest commit that the client has received from the dispatcher.

        Raises:
          StaleSessionError: If the dispatcher has been restarted in the meantime, and no longer has the dataset.
          InvalidValueError: If the digest is invalid, or the dispatcher sends a definition with another digest.
          FedstackError: If the definition is invalid, or contains a function that this worker does not permit.
        """
        if len(digest) != _DIGEST_BYTES:
            raise InvalidValueError(f"Expected a digest of {_DIGEST_BYTES} bytes, found {len(digest)} bytes")
        known = self._known.get(digest)
        if known is not None:
            return known
        coming = self._coming.get(digest)
        if coming is None:
            coming = self._coming[digest] = start_apart(self._come(digest, commit))
            coming.add_done_callback(lambda task: self._has_come(digest, task))
        return await asyncio.shield(coming)  # other callers may wait for the same task

    def _has_come(self, digest: bytes, task: "asyncio.Task[CachedDataset]") -> None:
        del self._coming[digest]
        consume_exception(task)

    async def _come(self, digest: bytes, commit: Commit | None) -> CachedDataset:
        request = DescribeDatasetRequest(digest=digest, commit=commit)
        content = await answered(self._dispatcher, lambda: self._fetch(request), _DISPATCHER_SECONDS)
        set_scope(self._scope)
        known = await off_loop(lambda: _read(content, digest))
        self._known.put(digest, known, len(content))
        return known

    async def _fetch(self, request: DescribeDatasetRequest) -> memoryview:
        async with self._dispatcher.define(request) as incoming:
            received = await receive(incoming, DatasetDescription)
            size = received.message.definition_bytes
            if size > self._limits.max_definition_bytes:
                raise exceeded(self._limits, "max_definition_bytes", size)
            content = np.empty(size, np.uint8).data  # `empty` does not touch the memory before bytes are received
            await received.rest.read_into([content])
            return content

    def close(self) -> None:
        """Cancels pending reads of definitions. Idempotent."""
        for task in self._coming.values():
            task.cancel()

    def __repr__(self) -> str:
        return f"<DefinitionCache of {len(self._known)}>"


def _read(content: memoryview, digest: bytes) -> CachedDataset:
    if hashlib.sha256(content).digest() != digest:
        raise InvalidValueError(
            f"Expected the definition of dataset {digest.hex()[:16]}…, found a definition with a different digest; the "
            "dispatcher's files are damaged, or the server is not a dispatcher: register the dataset again"
        )
    try:
        definition = DatasetDefinition.FromString(bytes(content))
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected the definition of a dataset, found bytes that cannot be decoded: {error}"
        ) from error
    dataset = read_definition(definition)
    return CachedDataset(dataset, dataset.divided(), definition.client_column)
