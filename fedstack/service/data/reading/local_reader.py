"""Reads ranges of elements from a data worker in this process, without copying elements."""

import threading
import time
from collections.abc import Awaitable, Callable, Sequence

from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import exact_bytes
from fedstack.computations.values.columns import Column
from fedstack.errors import WorkerUnavailableError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.proto.data_service_pb2 import ListClientsRequest, ListClientsResponse, ReadRequest
from fedstack.service.data.reading.budget import AHEAD, SECONDS_TOGETHER, SENT_BYTES, Blocks
from fedstack.service.data.reading.dataset_scope import reading
from fedstack.service.data.reading.readers import Range, Reader, Reading, readers_here
from fedstack.service.data.reading.state_stores import StateStores

# Several blocks are returned at a time: at most this number, about SENT_BYTES, or the blocks that are ready within
# SECONDS_TOGETHER.
_MOST_AT_ONCE = 64


class LocalReader(Reader):
    """Reads from a data worker in this process, without copying elements.

    Args:
      find: Returns the range for a request, or raises `WorkerUnavailableError` if the worker is stopping.
      list_clients: Returns the clients of a dataset.
      threads: The threads on which elements are prepared.
      states: The stores of clients' states.
    """

    def __init__(
        self,
        find: Callable[[ReadRequest], Awaitable[Range]],
        list_clients: Callable[[ListClientsRequest], Awaitable[ListClientsResponse]],
        threads: LeafThreads,
        states: StateStores,
    ) -> None:
        self._find = find
        self._list_clients = list_clients
        self._threads = threads
        self._states = states

    @property
    def states(self) -> StateStores:
        return self._states

    def stop(self) -> None:
        """Stops accepting new readings. Open readings continue."""
        for key in [key for key, found in readers_here.items() if found is self]:
            del readers_here[key]

    def open(self, what: ReadRequest, element: Type, ahead: int = AHEAD) -> Reading:
        return _LocalReading(self._find, what, element, self._threads)

    async def list_clients(self, request: ListClientsRequest) -> ListClientsResponse:
        return await self._list_clients(request)

    async def reach(self, seconds: float) -> None:
        await self.back()

    async def back(self) -> None:
        if not any(found is self for found in readers_here.values()):
            raise WorkerUnavailableError("The data worker in this process has been stopped")

    async def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return "<LocalReader>"


class _LocalReading(Reading):
    """A range whose blocks are prepared on a thread on demand, several at a time."""

    def __init__(
        self, find: Callable[[ReadRequest], Awaitable[Range]], what: ReadRequest, element: Type, threads: LeafThreads
    ) -> None:
        self._find = find
        self._what = what
        self._row_bytes = exact_bytes(element) or 0  # if the size of rows is unknown, only blocks are counted
        self._threads = threads
        self._range: Range | None = None
        self._failure: Exception | None = None
        self._gone = threading.Event()

    async def next(self) -> Sequence[Column]:
        gone = self._gone
        found = self._range = self._range or await self._find(self._what)
        if self._failure is not None:
            raise self._failure
        with reading(found.scope, is_wanted=lambda: not gone.is_set()).entered():
            made = await self._threads.run(lambda: self._made(found.blocks))
        self.client_rows = found.client_rows
        return made

    def _made(self, blocks: Blocks) -> Sequence[Column]:
        made: list[Column] = []
        size, end = 0, time.perf_counter() + SECONDS_TOGETHER
        try:
            # At least one block, regardless of the time, because an empty result marks the end of the range.
            while not made or (len(made) < _MOST_AT_ONCE and size < SENT_BYTES and time.perf_counter() < end):
                block = next(blocks, None)
                if block is None:
                    break
                made.append(block)
                size += len(block) * self._row_bytes
        except Exception as error:
            if not made:
                raise
            self._failure = error  # raised after the preceding blocks have been returned
        return made

    async def close(self) -> None:
        self._gone.set()
        self._range = None
