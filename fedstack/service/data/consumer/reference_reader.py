"""Reads the elements of referenced clients from data services before these elements are requested.

References belong to a group, which usually consists of all clients of a round on one worker. They are consumed roughly
in the order of the group. When a client is requested, the following clients are read too, in one call for each data
worker. A client with many elements is read separately, one block at a time.
"""

import asyncio
import functools
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError

from fedstack.computations.codec.references import Reference, ReferenceGroup
from fedstack.computations.types.language import SequenceType, Type, computation_pb2
from fedstack.computations.values.columns import Column, concatenate, empty_column
from fedstack.errors import CarrierError, FedstackError, InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.caches import SharedCache
from fedstack.foundations.error_text import name_text
from fedstack.proto.client_references_pb2 import ClientDataset
from fedstack.proto.data_service_pb2 import ReadRequest
from fedstack.service.data.consumer.data_workers import LOSSES, DataWorkers
from fedstack.service.data.reading.budget import CLIENTS_BYTES, size_in
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.io_loop import Outcome, start_apart
from fedstack.transport.wire.addresses import Target, parse_target

# The initial and the maximum number of clients to read ahead.
_FIRST_CLIENTS = 32
_MOST_CLIENTS = 512
# The elements that have been read, by a key for the dataset and the type of its elements, and by the client's id.
ClientColumns: TypeAlias = SharedCache[tuple[bytes, bytes], Column]


class GroupReader:
    """Reads one group of references. Any thread except the transport's loop may request elements.

    Args:
      group: The references.
      dataset: The dataset that the references' source specifies.
      workers: The data workers.
      held: The cache of the elements that have been read, so that a client's function can iterate over the elements
        several times.
    """

    def __init__(
        self, group: ReferenceGroup, dataset: ClientDataset, workers: DataWorkers, held: ClientColumns
    ) -> None:
        self._keys = group.keys
        self._dataset = dataset.digest + group.element.to_proto().SerializeToString(deterministic=True)
        self._element = group.element
        self._bytes_of = size_in(group.element)
        self._digest = dataset.digest
        self._workers = workers
        self._lock = threading.RLock()  # reentrant, because a finished read calls its callback under the lock
        self._held = held
        self._coming: dict[int, Outcome[None]] = {}
        self._alone: set[int] = set()
        self._large: set[int] = set()
        self._clients = _FIRST_CLIENTS

    def blocks(self, place: int) -> Iterator[Column]:
        """Yields the elements of a client in blocks."""
        found = self._whole(place)
        if found is None:
            yield from self._streamed(place)
        elif len(found):
            yield found

    def _whole(self, place: int) -> Column | None:
        """Returns all elements of a client, or `None` if the elements are too large to be read ahead."""
        while True:
            with self._lock:
                self._read_from(place)
                ahead = place + max(1, self._clients // 2)
                if ahead < len(self._keys):
                    self._read_from(ahead)
                found = self._held.get((self._dataset, self._keys[place]))
                if found is not None:
                    return found
                if place in self._large:
                    return None
                coming = self._coming.get(place)
            try:
                if coming is not None:  # otherwise the elements have just been evicted from the cache
                    coming.result()
            finally:
                del coming  # the outcome's error refers to frames, including this frame

    def _read_from(self, place: int) -> None:
        """Starts to read a client and some following clients, unless the client is known. The lock must be held."""
        if self._is_known(place):
            return
        last = min(place + (1 if place in self._alone else self._clients), len(self._keys))
        places = [place, *(k for k in range(place + 1, last) if not self._is_known(k) and k not in self._alone)]
        coming = self._workers.io.submit(self._read(places))
        self._coming.update(dict.fromkeys(places, coming))
        coming.add_done_callback(lambda _: self._has_come(places))

    def _is_known(self, place: int) -> bool:
        if place in self._coming or place in self._large:
            return True
        return self._held.get((self._dataset, self._keys[place])) is not None

    def _has_come(self, places: Sequence[int]) -> None:
        with self._lock:
            for place in places:
                self._coming.pop(place, None)

    async def _read(self, places: Sequence[int]) -> None:
        by_worker: dict[bytes, list[int]] = {}
        for place in places:
            by_worker.setdefault(await self._workers.preferred(self._keys[place]), []).append(place)
        reads = [self._read_at(worker, some, is_alone=len(places) == 1) for worker, some in by_worker.items()]
        for outcome in await asyncio.gather(*reads, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _read_at(self, worker: bytes, places: Sequence[int], *, is_alone: bool) -> None:
        """Reads some clients, and continues with another worker if a worker is lost."""
        begun = self._workers.io.time()
        while True:
            try:
                columns, sizes = await self._read_whole(worker, places)
                break
            except LOSSES as error:
                await self._workers.lose(worker, error, begun)
                worker = await self._workers.preferred(self._keys[places[0]])
            except FedstackError:
                if is_alone:
                    raise
                with self._lock:
                    self._alone.update(places)  # a client that is never requested may have caused the error
                return
        with self._lock:
            for place, column, size in zip(places, columns, sizes):
                self._held.put((self._dataset, self._keys[place]), column, size)
            if not columns:
                self._large.add(places[0])
            else:
                most = CLIENTS_BYTES * len(columns) // max(1, sum(sizes))
                self._clients = max(1, min(most, 2 * self._clients, _MOST_CLIENTS))

    def _request(self, places: Sequence[int]) -> ReadRequest:
        keys = [self._keys[place] for place in places]
        return ReadRequest(digest=self._digest, block_bytes=CLIENTS_BYTES, client=keys)

    async def _read_whole(self, worker: bytes, places: Sequence[int]) -> tuple[list[Column], list[int]]:
        """Returns the elements of the first clients that fit into `CLIENTS_BYTES`, and their sizes in bytes."""
        reading = self._workers.reader(worker).open(self._request(places), self._element)
        parts: list[Column] = []
        size = 0
        try:
            while size < CLIENTS_BYTES and (found := await reading.next()):
                parts += found
                size += sum(self._bytes_of(part) for part in found)
            columns = _divided(parts, reading.client_rows, self._element)
        finally:
            await reading.close()
        return columns, [self._bytes_of(column) for column in columns]

    def _streamed(self, place: int) -> Iterator[Column]:
        """Yields the elements of one client as they are received. If a worker is lost, continues with another."""
        run, workers, request = self._workers.io.run_sync, self._workers, self._request([place])
        begun = workers.io.time()
        while True:
            worker = run(workers.preferred(self._keys[place]))
            reading = workers.reader(worker).open(request, self._element)
            try:
                while found := run(reading.next()):
                    for column in found:
                        request.first_element += len(column)
                        yield column
                    begun = workers.io.time()
                return
            except LOSSES as error:
                run(workers.lose(worker, error, begun))
            finally:
                run(reading.close())


def _divided(parts: Sequence[Column], counts: Sequence[int], element: Type) -> list[Column]:
    """Splits consecutive elements by client, and returns the leading clients whose elements are complete."""
    columns: list[Column] = []
    index, start = 0, 0
    for count in counts:
        some: list[Column] = []
        while count and index < len(parts):
            part = parts[index].slice(start, min(start + count, len(parts[index])))
            some.append(part)
            count -= len(part)
            start += len(part)
            if start == len(parts[index]):
                index, start = index + 1, 0
        if count:
            break
        columns.append(concatenate(some, element) if some else empty_column(element))
    return columns


_PATIENCE_SECONDS = 60.0
# The maximum number of bytes of elements to keep, for all groups of references together.
_HELD_BYTES = 256 << 20
_MOST_HELD = 1_000_000
_SCHEME_OF_THIS_PROCESS = "grpc+local://"


class ReferenceReader(ClosesOnExit):
    """Reads the elements of clients from data workers.

    A reader is also a `DataBackend` for `data` blocks that refer to a client. Connections are opened when they are
    first needed, and stay open.

    Args:
      credentials: The credentials for calls to dispatchers and data workers.
      allowed: The addresses of the dispatchers whose data may be read; by default all dispatchers.
      patience: The maximum time to wait for a data worker, in seconds.
    """

    def __init__(
        self,
        credentials: ClientCredentials | None = None,
        allowed: Iterable[str] | None = None,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._credentials = credentials
        self._allowed = None if allowed is None else {canonical(address): address for address in allowed}
        self._patience = patience
        self._held: ClientColumns = SharedCache(_MOST_HELD, _HELD_BYTES)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Resets the reader to a state without connections, as in a forked process."""
        self._lock = threading.Lock()
        self._workers: dict[str, DataWorkers] = {}
        weakref.finalize(self, _let_go, self._workers).atexit = False
        self._groups: weakref.WeakKeyDictionary[ReferenceGroup, GroupReader] = weakref.WeakKeyDictionary()

    def blocks(self, group: ReferenceGroup, place: int) -> Iterator[Column]:
        """Yields the elements of a client, and reads other clients of the group ahead.

        Raises:
          CarrierError: If the elements belong to a data service that this reader may not read from.
          FedstackError: If the elements cannot be read.
        """
        with self._lock:
            found = None if self._closed else self._groups.get(group)
            if found is None:
                dataset = _dataset_of(group.source)
                workers = self._workers_of(dataset.dispatcher)
                found = self._groups[group] = GroupReader(group, dataset, workers, self._held)
        return found.blocks(place)

    def workers(self, dispatcher: str) -> DataWorkers:
        """Returns the data workers of a dispatcher.

        Raises:
          CarrierError: If this reader may not read the dispatcher's data.
        """
        with self._lock:
            return self._workers_of(dispatcher)

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._closed = True
        with self._lock:
            for found in self._workers.values():
                found.io.finish(found.close())
            self._workers.clear()

    def _workers_of(self, dispatcher: str) -> DataWorkers:
        if self._closed:
            raise self._closed_error()
        address = canonical(dispatcher)
        if self._allowed is not None:
            if address not in self._allowed:
                raise CarrierError(
                    f"Expected a reference to data of {' or '.join(self._allowed.values())}, found a reference to data "
                    f"of {name_text(dispatcher)}; to let this worker read from that data service, add its address: "
                    "fedstack serve --data-service ADDRESS, ServerConfig.data_services, "
                    "local_worker_pool(data_services=...)"
                )
            dispatcher = self._allowed[address]
        found = self._workers.get(address)
        if found is None:
            found = self._workers[address] = DataWorkers(dispatcher, self._credentials, self._patience)
        return found

    async def materialize(self, data: computation_pb2.Data, type_spec: Type) -> object:
        """Returns the sequence to which a `data` block refers.

        Raises:
          InvalidValueError: If the block does not refer to a sequence of a client.
        """
        dataset = _dataset_of(data.content)
        if not dataset.HasField("client") or not isinstance(type_spec, SequenceType):
            raise InvalidValueError(
                f"Expected a data block that refers to the sequence of a client, found a data block of type {type_spec}"
            )
        return Reference(ReferenceGroup(data.content, [dataset.client], type_spec.element, self.blocks), 0)

    def __repr__(self) -> str:
        allowed = "any data service" if self._allowed is None else ", ".join(self._allowed.values())
        return f"<ReferenceReader of {allowed}>"


def canonical(address: str) -> str:
    """Returns the canonical form of a server's address.

    Raises:
      InvalidValueError: If `address` is not a valid address.
    """
    if address.startswith(_SCHEME_OF_THIS_PROCESS):
        return address
    target: Target = parse_target(address)
    return f"localhost:{target.port}" if target.host == "127.0.0.1" else target.address


def _let_go(workers: dict[str, DataWorkers]) -> None:
    """Closes the connections of a reader that has been garbage-collected."""
    for found in workers.values():
        found.io.call_soon(functools.partial(_close, found))


def _close(workers: DataWorkers) -> None:
    start_apart(workers.close())


def _dataset_of(source: Any) -> ClientDataset:
    dataset = ClientDataset()
    try:
        if source.Unpack(dataset):
            return dataset
        found = source.TypeName() or "nothing"
    except DecodeError as error:
        found = f"a message that cannot be decoded: {error}"
    raise CarrierError(
        f"Expected a reference to a {ClientDataset.DESCRIPTOR.full_name}, found {name_text(found)}; pass the executor "
        "a data_backend for messages of this type"
    )
