"""Reads what references to clients of data services refer to."""

import functools
import threading
import weakref
from collections.abc import Iterable, Iterator

from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError

from fedstack.computations.codec.references import Reference, ReferenceGroup
from fedstack.computations.types.bounded_cache import SharedCache
from fedstack.computations.types.language import SequenceType, Type, computation_pb2
from fedstack.computations.values.columns import Column
from fedstack.errors import CarrierError, InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.error_text import name_text
from fedstack.proto.client_references_pb2 import ClientDataset
from fedstack.service.data.clients.data_workers import DataWorkers
from fedstack.service.data.clients.read_ahead import Held, ReadAhead
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.io_loop import start_apart
from fedstack.transport.wire.addresses import Target, parse_target

_PATIENCE_SECONDS = 60.0
# How much of what was read is kept, for all groups of references together.
_HELD_BYTES = 256 << 20
_MOST_HELD = 1_000_000
_SCHEME_OF_THIS_PROCESS = "grpc+local://"


class ReferenceReader(ClosesOnExit):
    """Reads the elements of clients at data workers; a `DataBackend`, too, for `data` blocks that name a client.

    Connections are made when they are first needed, and kept.

    Args:
      credentials: What dispatchers and data workers are dialled with.
      allowed: The addresses of the dispatchers whose data may be read; by default all.
      patience: How long to wait for a data worker, in seconds.
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
        self._held: Held = SharedCache(_MOST_HELD, _HELD_BYTES)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begins without connections."""
        self._lock = threading.Lock()
        self._workers: dict[str, DataWorkers] = {}
        weakref.finalize(self, _let_go, self._workers).atexit = False
        self._groups: weakref.WeakKeyDictionary[ReferenceGroup, ReadAhead] = weakref.WeakKeyDictionary()

    def blocks(self, group: ReferenceGroup, place: int) -> Iterator[Column]:
        """Yields the elements of a client; those of others in the group are read ahead.

        Raises:
          CarrierError: If they are of a data service that may not be read from.
          FedstackError: If they cannot be read.
        """
        with self._lock:
            found = None if self._closed else self._groups.get(group)
            if found is None:
                dataset = _dataset_of(group.source)
                workers = self._workers_of(dataset.dispatcher)
                found = self._groups[group] = ReadAhead(group, dataset, workers, self._held)
        return found.blocks(place)

    def workers(self, dispatcher: str) -> DataWorkers:
        """Returns the data workers of a dispatcher.

        Raises:
          CarrierError: If it may not be dialled.
        """
        with self._lock:
            return self._workers_of(dispatcher)

    def close(self) -> None:
        """Ends the connections. Idempotent."""
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
                    f"Expected data of {' or '.join(self._allowed.values())}, found a reference to data of "
                    f"{name_text(dispatcher)}; if this worker may read from there, name it: fedstack serve "
                    "--data-service ADDRESS, ServerConfig.data_services, local_worker_pool(data_services=...)"
                )
            dispatcher = self._allowed[address]
        found = self._workers.get(address)
        if found is None:
            found = self._workers[address] = DataWorkers(dispatcher, self._credentials, self._patience)
        return found

    async def materialize(self, data: computation_pb2.Data, type_spec: Type) -> object:
        """Returns the sequence that a `data` block names.

        Raises:
          InvalidValueError: If it names none.
        """
        dataset = _dataset_of(data.content)
        if not dataset.HasField("client") or not isinstance(type_spec, SequenceType):
            raise InvalidValueError(f"Expected data of a client, a sequence, found {type_spec}; at a data block")
        return Reference(ReferenceGroup(data.content, [dataset.client], type_spec.element, self), 0)

    def __repr__(self) -> str:
        allowed = "any data service" if self._allowed is None else ", ".join(self._allowed.values())
        return f"<ReferenceReader of {allowed}>"


def canonical(address: str) -> str:
    """Returns the same text for all ways to write the address of a server.

    Raises:
      InvalidValueError: If it is no address.
    """
    if address.startswith(_SCHEME_OF_THIS_PROCESS):
        return address
    target: Target = parse_target(address)
    return f"localhost:{target.port}" if target.host == "127.0.0.1" else target.address


def _let_go(workers: dict[str, DataWorkers]) -> None:
    """Closes the connections of a reader that nobody has any more; a finalizer."""
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
        found = f"one that cannot be read: {error}"
    raise CarrierError(
        f"Expected a reference to a {ClientDataset.DESCRIPTOR.full_name}, found {name_text(found)}; give the executor "
        "a data_backend for it"
    )
