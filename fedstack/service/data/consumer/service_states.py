"""Reads and writes clients' states at the data workers of data services, for executors that do not have the folders.

A store of states is at each data worker that has its folder. A large request is divided, and its parts are read from
several of these workers. If one of them is lost, another one is used.
"""

import asyncio
import contextlib
import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from fedstack.computations.codec.stored_values import StoredFile, StoredValue
from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column
from fedstack.data.client_states.record_layout import RecordLayout, Records
from fedstack.data.client_states.store_folders import ClientStateFolders, stored_in
from fedstack.errors import FedstackError, InvalidValueError, ProgramStateError, WorkerUnavailableError
from fedstack.executors.concurrency.coroutines import gather
from fedstack.foundations.caches import SharedCache
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import name_text
from fedstack.proto.data_service_pb2 import ReadStatesRequest, WriteStatesRequest, WriteStatesResponse
from fedstack.proto.extensions_pb2 import Packed
from fedstack.service.data.consumer.data_workers import LOSSES
from fedstack.service.data.consumer.reference_reader import ReferenceReader
from fedstack.service.data.reading.state_stores import StateStores
from fedstack.transport.peers.io_loop import io_loop

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
# The maximum size of a part of a request in bytes, and how many parts travel at a time. Data workers accept 16 MiB.
_PART_BYTES = 4 << 20
_PARTS_AT_ONCE = 8
# How long to wait for data services when a store is searched, and how long a store that was not found stays unknown.
_FIND_SECONDS = 3.0
_UNKNOWN_SECONDS = 10.0
_MOST_STORES = 1000
_PAUSE_SECONDS = 0.1

# The address of a dispatcher, and the id of one of its data workers.
_Holder: TypeAlias = tuple[str, bytes]


class ServiceStates:
    """The stores of clients' states in folders of this process, and at the workers of data services.

    See `StoreFolders`. Any thread except the transport's loop may call the methods.

    Args:
      reader: Has the connections to data workers; closed with this object.
      services: The addresses of the dispatchers.
      folders: The folders of this process, which are used first.
      patience: How long to wait for a data worker that has a store, in seconds.
    """

    def __init__(
        self, reader: ReferenceReader, services: Sequence[str], folders: ClientStateFolders, patience: float = 60.0
    ) -> None:
        self._reader = reader
        self._services = services
        self._folders = folders
        self._patience = patience
        # The data workers that have a store; or the time until which nobody is asked for it.
        self._holders: SharedCache[str, frozenset[_Holder]] = SharedCache(_MOST_STORES, _MOST_STORES)
        self._unknown: SharedCache[str, float] = SharedCache(_MOST_STORES, _MOST_STORES)

    def find(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that stores have; see `StoreFolders.find`."""
        here, now = set(self._folders.find(ids)), io_loop.time()
        asked = [one for one in ids if one not in here and self._holders.get(one) is None]
        if wanted := [one for one in asked if (self._unknown.get(one) or 0.0) <= now]:
            with contextlib.suppress(asyncio.TimeoutError):
                io_loop.run_sync(Deadline(_FIND_SECONDS).wait(self._search(wanted)))
            for one in wanted:
                if self._holders.get(one) is None:
                    self._unknown.put(one, now + _UNKNOWN_SECONDS, 1)
        return [one for one in ids if one in here or self._holders.get(one) is not None]

    async def _search(self, ids: Sequence[str]) -> None:
        """Asks all data workers which of some stores they have."""
        await gather([self._search_at(service, ids) for service in self._services])

    async def _search_at(self, service: str, ids: Sequence[str]) -> None:
        try:
            workers = self._reader.workers(service)
            there = await workers.there()
            asked = [workers.reader(worker).states.find(ids) for worker in there]
        except FedstackError as error:
            _logger.debug("Cannot look for clients' states at the data service at %s: %s", service, error)
            return
        for worker, found in zip(there, await asyncio.gather(*asked, return_exceptions=True)):
            if isinstance(found, BaseException):
                _logger.debug("Cannot look for clients' states at a data worker of %s: %s", service, found)
                continue
            for one in {*found} & {*ids}:
                self._holders.put(one, (self._holders.get(one) or frozenset()) | {(service, worker)}, 1)

    def read(self, found: Sequence[StoredValue]) -> Column:
        """Reads states of one type; see `StoreFolders.read`.

        Raises:
          CarrierError: If neither this process nor a data worker has the store.
          FedstackError: If the states cannot be read.
        """
        places: dict[str, list[int]] = {}
        for place, value in enumerate(found):
            places.setdefault(value.file.store, []).append(place)
        layout = RecordLayout.of(found[0].file.type_spec)
        records = layout.empty(len(found))
        for store, some in places.items():
            values = [found[place] for place in some]
            if len(places) == 1:
                self._read(store, values, layout, records)
            else:
                part = layout.empty(len(some))
                self._read(store, values, layout, part)
                records[some] = part
        return layout.column(records)

    def _read(self, store: str, found: Sequence[StoredValue], layout: RecordLayout, records: Records) -> None:
        if self._is_here(store):
            records[:] = self._folders.records(found, layout)
            return
        rows = _rows_of_a_part(layout)
        reads: list[Callable[[], Coroutine[Any, Any, None]]] = []
        for start in range(0, len(found), rows):
            request = ReadStatesRequest(states=_message(store, found[start : start + rows]))
            reads.append(functools.partial(self._read_part, store, request, records[start : start + rows]))
        io_loop.run_sync(_some_at_once(reads))

    async def _read_part(self, store: str, request: ReadStatesRequest, records: Records) -> None:
        key = request.states.file[0].name.encode()
        await self._asked(store, key, lambda states: states.read(request, records), self._patience)

    def _is_here(self, store: str) -> bool:
        """Returns whether this process reads a store in its own folders, which also say that nobody has it."""
        return bool(self._folders.find([store])) or not self.find([store])

    def write(self, store: str, name: str, type_spec: Type, ids: bytes, values: Column) -> Sequence[StoredValue]:
        """Writes states to new files; see `StoreFolders.write`.

        Raises:
          ProgramStateError: If the data workers cannot write them.
          FedstackError: If they cannot be written.
        """
        if self._is_here(store):
            return self._folders.write(store, name, type_spec, ids, values)
        clients, layout = _list_in(ids), RecordLayout.of(type_spec)
        rows, message = _rows_of_a_part(layout), type_spec.to_proto()
        writes: list[Callable[[], Coroutine[Any, Any, WriteStatesResponse]]] = []
        for start in range(0, len(values), rows):
            records = layout.records(values.slice(start, min(start + rows, len(values))))
            own = json.dumps(clients[start : start + rows]).encode()
            request = WriteStatesRequest(
                store=store, name=f"{name}-{start:x}", type=message, clients=own, rows=len(records)
            )
            writes.append(functools.partial(self._write_part, request, records))
        try:
            written = io_loop.run_sync(_some_at_once(writes))
        except FedstackError as error:
            raise ProgramStateError(f"Cannot write states of clients over a data service: {error}") from error
        files = [(file, count) for response in written for file, count in zip(response.file, response.rows)]
        stored = [StoredFile(store, file.name, file.digest, type_spec, self) for file, _ in files]
        return stored_in(stored, [count for _, count in files])

    async def _write_part(self, request: WriteStatesRequest, records: Records) -> WriteStatesResponse:
        beginning, attempts = request.name, itertools.count()

        def write(states: StateStores) -> Awaitable[WriteStatesResponse]:
            request.name = f"{beginning}-{next(attempts):x}"  # an attempt whose answer was lost has left its files
            return states.write(request, records)

        return await self._asked(request.store, beginning.encode(), write, 0.0)

    async def _asked(self, store: str, key: bytes, ask: Callable[[StateStores], Awaitable[_T]], patience: float) -> _T:
        """Asks a data worker that has a store, and another one if that is lost.

        Args:
          store: The id of the store.
          key: Requests with the same key are sent to the same worker, which remembers the files.
          ask: Asks the stores of a worker.
          patience: How long to wait for a worker, in seconds.
        """
        begun = io_loop.time()
        while True:
            service, worker = await self._holder(store, key, patience)
            workers = self._reader.workers(service)
            try:
                return await ask(workers.reader(worker).states)
            except LOSSES as error:
                await workers.lose(worker, error, begun)

    async def _holder(self, store: str, key: bytes, patience: float) -> _Holder:
        """Returns a data worker that has a store.

        Raises:
          WorkerUnavailableError: If there is none in time.
        """
        async for attempt in Deadline(patience, io_loop.time).attempts(itertools.repeat(_PAUSE_SECONDS)):
            if attempt:  # a worker that has been started again has another id
                with contextlib.suppress(asyncio.TimeoutError):
                    await Deadline(_FIND_SECONDS).wait(self._search([store]))
            holders = self._holders.get(store) or frozenset()
            there = [
                (service, worker)
                for service in {service for service, _ in holders}
                for worker in self._reader.workers(service).usable
                if (service, worker) in holders
            ]
            if there:
                return max(there, key=lambda one: hashlib.blake2b(one[1] + key, digest_size=8).digest())
        raise WorkerUnavailableError(
            f"Expected a data worker that has the states of clients with the id {name_text(store)}, found none within "
            f"{patience:g} s; start one: fedstack serve --data-worker DISPATCHER --client-states FOLDER"
        )

    def close(self) -> None:
        """Closes the connections of the reader; see `StoreFolders.close`."""
        self._reader.close()

    def __repr__(self) -> str:
        return f"<ServiceStates of {', '.join(self._services)}, and {self._folders!r}>"


def _rows_of_a_part(layout: RecordLayout) -> int:
    return max(1, _PART_BYTES // layout.dtype.itemsize)


def _message(store: str, found: Sequence[StoredValue]) -> Packed.Stored:
    where = StoredValue.locate(found)
    files = [Packed.Stored.File(name=name, digest=digest) for name, digest in where.files]
    of = where.of if len(files) > 1 else ()
    return Packed.Stored(store=store, type=where.type_spec.to_proto(), file=files, of=of, record=where.records)


def _list_in(ids: bytes) -> list[object]:
    try:
        found = cast(object, json.loads(ids))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise InvalidValueError(f"Expected a list of client ids in JSON, found {name_text(str(ids))}")
    return cast("list[object]", found)


async def _some_at_once(parts: Sequence[Callable[[], Coroutine[Any, Any, _T]]]) -> list[_T]:
    """Runs parts of a request, some at a time, and returns their results in order. The first error ends all of them."""
    room = asyncio.Semaphore(_PARTS_AT_ONCE)

    async def run(part: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with room:
            return await part()

    return await gather([run(part) for part in parts])
