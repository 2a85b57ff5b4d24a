"""Reads and writes clients' states at data workers that have them in folders, over a connection or in the same process.

States travel as their records, of shape [states, bytes of a record].
"""

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np

from fedstack.computations.codec.stored_values import StoredValue, read_stored, stored_type
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.data.client_states.record_layout import RecordLayout, Records
from fedstack.data.client_states.store_folders import ClientStateFolders
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.worker.receiving import receive
from fedstack.foundations.number_checks import MOST_BYTES
from fedstack.proto.data_service_pb2 import (
    ReadStatesRequest,
    ReadStatesResponse,
    WriteStatesRequest,
    WriteStatesResponse,
)
from fedstack.proto.extensions_pb2 import Packed
from fedstack.transport.peers.data_worker_stub import DataWorkerStub
from fedstack.transport.peers.executor_stub import check_protocol


class StateStores(Protocol):
    """The stores of a data worker. The coroutines run on the transport's loop."""

    async def find(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that the worker's stores have.

        Raises:
          FedstackError: If the worker does not answer.
        """
        ...

    async def read(self, request: ReadStatesRequest, records: Records) -> None:
        """Reads states into `records`.

        Raises:
          FedstackError: If they cannot be read.
        """
        ...

    async def write(self, request: WriteStatesRequest, records: Records) -> WriteStatesResponse:
        """Writes states to new files, which survive a power failure.

        Raises:
          FedstackError: If they cannot be written. Then there are no files, unless the worker was lost.
        """
        ...


class RemoteStores:
    """The stores of a data worker behind a connection. See `StateStores`.

    Args:
      stub: The stub for calls to the worker.
    """

    def __init__(self, stub: DataWorkerStub) -> None:
        self._stub = stub

    async def find(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that the worker's stores have; see `StateStores.find`."""
        return await self._stub.find_stores(ids)

    async def read(self, request: ReadStatesRequest, records: Records) -> None:
        """Reads states; see `StateStores.read`."""
        async with self._stub.read_states(request) as incoming:
            received = await receive(incoming, ReadStatesResponse)
            check_protocol(received.message.protocol, received.message.version, self._stub.address)
            await received.rest.read_into([bytes_of(records)])

    async def write(self, request: WriteStatesRequest, records: Records) -> WriteStatesResponse:
        """Writes states; see `StateStores.write`."""
        async with self._stub.write_states(request, bytes_of(records)) as incoming:
            received = await receive(incoming, WriteStatesResponse)
            await received.end()
            check_protocol(received.message.protocol, received.message.version, self._stub.address)
            return received.message


class HeldStores:
    """The stores of a data worker of this process. See `StateStores`.

    Args:
      folders: The folders with the stores.
      threads: The threads on which files are read and written.
      max_value_bytes: The maximum size of a state in bytes.
    """

    def __init__(self, folders: ClientStateFolders, threads: LeafThreads, max_value_bytes: int = MOST_BYTES) -> None:
        self._folders = folders
        self._threads = threads
        self._max_value_bytes = max_value_bytes

    async def layout(self, message: computation_pb2.Type) -> RecordLayout:
        """Returns the layout of states of a type.

        Raises:
          FedstackError: If there are no such states, or they are too large.
        """
        return await self._threads.run(lambda: RecordLayout.of(self._type(message)))

    def _type(self, message: computation_pb2.Type) -> Type:
        return stored_type(message, self._max_value_bytes, "the states of clients")

    async def find(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that stores have; see `StateStores.find`."""
        return await self._threads.run(lambda: self._folders.find(ids))

    async def read(self, request: ReadStatesRequest, records: Records) -> None:
        """Reads states; see `StateStores.read`."""
        await self._threads.run(lambda: self._read(request.states, records))

    def _read(self, message: Packed.Stored, records: Records) -> None:
        member = self._type(message.type)
        column = read_stored(message, None, member, member, "the states of clients", self._folders, StoredValue)
        if len(column):
            records[:] = self._folders.records(cast("Sequence[StoredValue]", column.values), RecordLayout.of(member))

    async def write(self, request: WriteStatesRequest, records: Records) -> WriteStatesResponse:
        """Writes states; see `StateStores.write`."""
        return await self._threads.run(lambda: self._write(request, records))

    def _write(self, request: WriteStatesRequest, records: Records) -> WriteStatesResponse:
        layout = RecordLayout.of(self._type(request.type))

        def some(start: int, stop: int) -> Records:
            return records[start:stop]

        shards = self._folders.write_records(request.store, request.name, layout, request.clients, len(records), some)
        files = [Packed.Stored.File(name=shard.name, digest=shard.digest) for shard in shards]
        return WriteStatesResponse(file=files, rows=[len(shard.client_ids) for shard in shards])


def bytes_of(records: Records) -> memoryview:
    """Returns the memory of records."""
    return np.ascontiguousarray(records).reshape(-1).data
