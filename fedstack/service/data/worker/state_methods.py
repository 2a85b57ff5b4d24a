"""Serves clients' states in folders of a data worker, to executors that use the data service."""

import asyncio
import contextlib
from collections.abc import Mapping

from fedstack.computations.types.language import computation_pb2
from fedstack.data.client_states.record_layout import Records
from fedstack.executors.concurrency.leaf_threads import read_message
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.worker.receiving import receive
from fedstack.executors.worker.work import Work
from fedstack.proto.data_service_pb2 import (
    ReadStatesRequest,
    ReadStatesResponse,
    WriteStatesRequest,
    WriteStatesResponse,
)
from fedstack.proto.extensions_pb2 import FindStoresRequest, FindStoresResponse
from fedstack.service.data.reading.state_stores import HeldStores, bytes_of
from fedstack.service.host.limits import DataWorkerLimits, ServiceLimits, exceeded
from fedstack.transport.peers.executor_stub import check_protocol, with_protocol
from fedstack.transport.peers.methods import Answers, DownloadMethod, ExchangeMethod, Method, UnaryMethod
from fedstack.transport.wire.parcels import Incoming, Parcel


class StateMethods:
    """The methods of a data worker for clients' states.

    Args:
      stores: The stores of the worker.
      limits: The limits of the worker. `max_block_bytes` is that of a request, unless a single state is larger, and
        `max_ahead_bytes` that of all states in memory.
      rules: The limits on values and messages.
    """

    def __init__(self, stores: HeldStores, limits: DataWorkerLimits, rules: ServiceLimits) -> None:
        self._stores = stores
        self._limits = limits
        self._rules = rules
        self._no_clients = ProgressCounts()
        self._room = asyncio.Semaphore(max(1, limits.max_ahead_bytes // limits.max_block_bytes))

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        return {
            "FindStores": UnaryMethod(self._find),
            "ReadStates": DownloadMethod(self._read),
            "WriteStates": ExchangeMethod(self._write),
        }

    async def _find(self, content: bytes) -> bytes:
        request = await read_message(FindStoresRequest, content)
        return FindStoresResponse(id=await self._stores.find(request.id)).SerializeToString()

    async def _read(self, content: bytes) -> Answers:
        request = await read_message(ReadStatesRequest, content)
        check_protocol(request.protocol, request.version, "the client")
        async with contextlib.AsyncExitStack() as room:
            reading = Work(self._records(request, room))
            # Closed before the room: work that goes on could enter it later, and nobody would leave it.
            async with contextlib.aclosing(reading.beats(self._no_clients, self._rules.heartbeat_seconds)) as beats:
                async for beat in beats:
                    yield beat
            header = with_protocol(ReadStatesResponse()).SerializeToString()
            yield Parcel(header, [bytes_of(reading.result())], self._rules.chunking.chunk_bytes)

    async def _records(self, request: ReadStatesRequest, room: contextlib.AsyncExitStack) -> Records:
        await room.enter_async_context(self._room)
        records = await self._empty(request.states.type, len(request.states.record))
        await self._stores.read(request, records)
        return records

    async def _write(self, incoming: Incoming) -> Answers:
        writing = Work(self._written(incoming))
        async for beat in writing.beats(self._no_clients, self._rules.heartbeat_seconds):
            yield beat
        yield Parcel(with_protocol(writing.result()).SerializeToString())

    async def _written(self, incoming: Incoming) -> WriteStatesResponse:
        received = await receive(incoming, WriteStatesRequest)
        request = received.message
        check_protocol(request.protocol, request.version, "the client")
        async with self._room:
            records = await self._empty(request.type, request.rows)
            await received.rest.read_into([bytes_of(records)])
            return await self._stores.write(request, records)

    async def _empty(self, type_spec: computation_pb2.Type, rows: int) -> Records:
        """Returns memory for the states of a request.

        Raises:
          ResourceLimitError: If they are too many for one request.
        """
        layout = await self._stores.layout(type_spec)
        size = rows * layout.dtype.itemsize
        if rows > 1 and size > self._limits.max_block_bytes:
            raise exceeded(self._limits, "max_block_bytes", size, "ask for fewer at once")
        return layout.empty(rows)
