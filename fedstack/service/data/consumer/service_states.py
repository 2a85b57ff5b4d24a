"""Reads and writes clients' states at the data workers of data services, for executors that do not have the folders.

A store of states is at each data worker that has its folder. A large request is divided, and its parts are read from
several of these workers. If one of them is lost, another one is used. If none is left, the executor fails like one that
is lost: its clients run again, and get their states from the program.
"""

import asyncio
import contextlib
import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from fedstack.computations.codec.stored_values import StoredFile, StoredValue
from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column
from fedstack.data.client_seeds import ClientId
from fedstack.data.client_states.record_layout import RecordLayout, Records
from fedstack.data.client_states.shard_head import ids_as_json
from fedstack.data.client_states.store_folders import ClientStateFolders, ids_in, stored_in
from fedstack.errors import (
    CarrierError,
    FedstackError,
    ProgramStateError,
    ResourceLimitError,
    WorkerUnavailableError,
)
from fedstack.executors.concurrency.coroutines import gather
from fedstack.executors.concurrency.leaf_threads import off_loop
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
# The size of a part of a request in bytes, and how many parts travel at a time.
_PART_BYTES = 4 << 20
_PARTS_AT_ONCE = 8
# How long data services are searched for a store, how long a store that was not found is not searched again, and for
# how long parts of a call wait for a data worker that has it.
_FIND_SECONDS = 1.0
_UNKNOWN_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0
_MOST_STORES = 1000
_PAUSE_SECONDS = 0.25

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
        self,
        reader: ReferenceReader,
        services: Sequence[str],
        folders: ClientStateFolders,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._reader = reader
        self._services = services
        self._folders = folders
        self._patience = patience
        # The data workers that have a store; or for how long nobody is asked for it.
        self._holders: SharedCache[str, frozenset[_Holder]] = SharedCache(_MOST_STORES, _MOST_STORES)
        self._unknown: SharedCache[str, Deadline] = SharedCache(_MOST_STORES, _MOST_STORES)
        self._told: set[str] = set()
        self._searches: dict[str, asyncio.Task[None]] = {}  # used on the transport's loop only

    def find(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that stores have; see `StoreFolders.find`."""
        here = set(self._folders.find(ids))
        return [one for one in ids if one in here or self._is_at_a_service(one)]

    def _is_at_a_service(self, store: str) -> bool:
        if self._usable(store):
            return True
        searched = self._unknown.get(store)
        if searched is not None and not searched.is_over:
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            io_loop.run_sync(Deadline(_FIND_SECONDS).wait(self._search(store)))
        if self._usable(store):
            return True
        self._unknown.put(store, Deadline(_UNKNOWN_SECONDS), 1)
        return False

    def _usable(self, store: str) -> list[_Holder]:
        """Returns the data workers that have a store and are not lost."""
        holders = self._holders.get(store) or frozenset()
        usable = {service: set(self._reader.workers(service).usable) for service in {one[0] for one in holders}}
        return [holder for holder in holders if holder[1] in usable[holder[0]]]

    async def _search(self, store: str) -> None:
        """Asks all data workers whether they have a store. Callers that search for the same store share a search."""
        search = self._searches.get(store)
        if search is None:
            search = self._searches[store] = asyncio.ensure_future(self._search_all(store))
            search.add_done_callback(lambda _: self._searches.pop(store, None))
        await asyncio.shield(search)

    async def _search_all(self, store: str) -> None:
        await gather([self._search_at(service, store) for service in self._services])

    async def _search_at(self, service: str, store: str) -> None:
        try:
            workers = self._reader.workers(service)
            known = await workers.known()
        except FedstackError as error:
            self._tell(service, error)
            return

        async def ask(worker: bytes) -> None:
            # An answer counts when it comes: others may take long.
            try:
                if store in await workers.reader(worker).states.find([store]):
                    self._holders.put(store, (self._holders.get(store) or frozenset()) | {(service, worker)}, 1)
            except FedstackError as error:
                self._tell(service, error)

        await gather([ask(worker) for worker in known])

    def _tell(self, service: str, error: FedstackError) -> None:
        """Logs why a data service cannot be asked. What a service that is away does not say is told once."""
        is_new = not isinstance(error, LOSSES) and service not in self._told
        if is_new:
            self._told.add(service)
        level = logging.WARNING if is_new else logging.DEBUG
        _logger.log(level, "Cannot look for clients' states at the data service at %s: %s", service, str(error))

    def read(self, found: Sequence[StoredValue]) -> Column:
        """Reads states of one type; see `StoreFolders.read`.

        Raises:
          CarrierError: If neither this process nor a data worker has the store.
          WorkerUnavailableError: If no data worker that has the store is left.
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
            stop = start + rows
            reads.append(functools.partial(self._read_part, store, found[start:stop], records[start:stop]))
        io_loop.run_sync(_some_at_once(reads))

    async def _read_part(self, store: str, found: Sequence[StoredValue], records: Records) -> None:
        request = ReadStatesRequest(states=_message(store, found))
        key = request.states.file[0].name.encode()
        try:
            await self._asked(store, key, lambda states: states.read(request, records), self._patience)
        except ResourceLimitError:  # the data worker has another limit than we expect
            if len(found) == 1:
                raise
            middle = len(found) // 2
            await self._read_part(store, found[:middle], records[:middle])
            await self._read_part(store, found[middle:], records[middle:])

    def _is_here(self, store: str) -> bool:
        """Returns whether this process reads a store in its own folders, which also say that nobody has it."""
        if self._holders.get(store) is not None:  # a search of folders takes long
            return False
        return bool(self._folders.find([store])) or not self.find([store])

    def write(self, store: str, name: str, type_spec: Type, ids: bytes, values: Column) -> Sequence[StoredValue]:
        """Writes states to new files; see `StoreFolders.write`.

        Raises:
          ProgramStateError: If the data workers cannot write them.
          FedstackError: If they cannot be written.
        """
        if self._is_here(store):
            return self._folders.write(store, name, type_spec, ids, values)
        clients, rows = ids_in(ids, len(values)), _rows_of_a_part(RecordLayout.of(type_spec))
        write = functools.partial(self._write_part, store, name, type_spec, clients, values)
        writes = [
            functools.partial(write, range(len(values))[start : start + rows]) for start in range(0, len(values), rows)
        ]
        try:
            written = io_loop.run_sync(_some_at_once(writes))
        except FedstackError as error:
            raise ProgramStateError(f"Cannot write states of clients over a data service: {error}") from error
        responses = list(itertools.chain.from_iterable(written))
        files = [(file, count) for response in responses for file, count in zip(response.file, response.rows)]
        stored = [StoredFile(store, file.name, file.digest, type_spec, self) for file, _ in files]
        return stored_in(stored, [count for _, count in files])

    async def _write_part(
        self, store: str, name: str, type_spec: Type, clients: Sequence[ClientId], values: Column, part: range
    ) -> list[WriteStatesResponse]:
        beginning, attempts = f"{name}-{part.start:x}", itertools.count()
        layout = RecordLayout.of(type_spec)
        records = await off_loop(lambda: layout.records(values.slice(part.start, part.stop)))
        own = json.dumps(ids_as_json(clients[part.start : part.stop])).encode()

        def write(states: StateStores) -> Awaitable[WriteStatesResponse]:
            # An attempt whose answer was lost has left its files.
            attempt = f"{beginning}-{len(part):x}-{next(attempts):x}"
            request = WriteStatesRequest(
                store=store, type=type_spec.to_proto(), name=attempt, clients=own, rows=len(records)
            )
            return states.write(request, records)

        try:
            return [await self._asked(store, beginning.encode(), write, 0.0)]
        except ResourceLimitError:
            if len(part) == 1:
                raise
            halves = part[: len(part) // 2], part[len(part) // 2 :]
            found = [await self._write_part(store, name, type_spec, clients, values, half) for half in halves]
            return [*found[0], *found[1]]

    async def _asked(self, store: str, key: bytes, ask: Callable[[StateStores], Awaitable[_T]], patience: float) -> _T:
        """Asks a data worker that has a store, and another one if that is lost, or has it no more.

        Args:
          store: The id of the store.
          key: Requests with the same key are sent to the same worker, which remembers the files.
          ask: Asks the stores of a worker.
          patience: How long to wait for a worker, in seconds.
        """
        deadline, failure = Deadline(patience, io_loop.time), None
        begun = io_loop.time()
        while True:
            service, worker = await self._holder(store, key, deadline, failure)
            workers = self._reader.workers(service)
            try:
                return await ask(workers.reader(worker).states)
            except LOSSES as error:
                await workers.lose(worker, error, begun)
            except (CarrierError, ProgramStateError) as error:
                failure = error
                self._holders.put(store, (self._holders.get(store) or frozenset()) - {(service, worker)}, 1)

    async def _holder(self, store: str, key: bytes, deadline: Deadline, failure: FedstackError | None) -> _Holder:
        """Returns a data worker that has a store.

        Raises:
          FedstackError: The failure of the last one that had it, if there is no other.
          WorkerUnavailableError: If there is none in time.
        """
        async for attempt in deadline.attempts(itertools.repeat(_PAUSE_SECONDS)):
            if attempt:  # a worker that has been started again has another id
                with contextlib.suppress(asyncio.TimeoutError):
                    await Deadline(_FIND_SECONDS).wait(self._search(store))
            if usable := self._usable(store):
                return max(usable, key=lambda one: hashlib.blake2b(one[1] + key, digest_size=8).digest())
            if failure is not None:
                raise failure
        raise WorkerUnavailableError(
            f"Expected a data worker that has the states of clients with the id {name_text(store)}, found none within "
            f"{self._patience:g} s; start one: fedstack serve --data-worker DISPATCHER --client-states FOLDER"
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


async def _some_at_once(parts: Sequence[Callable[[], Coroutine[Any, Any, _T]]]) -> list[_T]:
    """Runs parts of a request, some at a time, and returns their results in order. The first error ends all of them."""
    room = asyncio.Semaphore(_PARTS_AT_ONCE)

    async def run(part: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with room:
            return await part()

    return await gather([run(part) for part in parts])
