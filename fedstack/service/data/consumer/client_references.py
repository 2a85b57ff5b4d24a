"""References to the elements of a registered dataset's clients, used as clients' values in computations."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import any_pb2

from fedstack.computations.codec.references import Reference, ReferenceGroup
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import StructType, TensorType, computation_pb2
from fedstack.computations.types.type_structure import fields_of, type_from_proto
from fedstack.computations.values.column_sequence import BlockSequence
from fedstack.computations.values.deferred_column import ClientRows
from fedstack.data.client_data import batching_of
from fedstack.errors import InvalidValueError
from fedstack.proto.client_references_pb2 import ClientDataset, ClientSelections
from fedstack.proto.data_service_pb2 import DatasetDescription, DescribeDatasetRequest, ListClientsRequest
from fedstack.service.data.consumer.data_workers import LOSSES
from fedstack.service.data.consumer.reference_reader import ReferenceReader
from fedstack.service.data.datasets.client_datasets import id_of, key_of
from fedstack.service.data.datasets.elements import shower
from fedstack.transport.grpc.credentials import ClientCredentials


class ClientReference(Reference):
    """Refers to a client's elements, and can be passed to a computation in place of these elements.

    The computation receives a sequence of the elements or a struct of arrays with a row for each element, depending on
    the computation's type. Use `batches` to pass a sequence of batches.

    The process that runs the computation reads the elements. A reference is small and can be pickled. It contains the
    address of the data service, but no credentials. Iterating over the reference reads the elements in this process.

    Attributes:
      client_id: The client's id.
    """

    __slots__ = ("client_id",)

    def __init__(self, group: ReferenceGroup, place: int, client_id: Any) -> None:
        super().__init__(group, place)
        self.client_id = client_id

    def __iter__(self) -> Iterator[Any]:
        shown, lists = shower(self.element_type), BlockSequence(self).lists()
        if shown is None:
            return itertools.chain.from_iterable(lists)
        return itertools.chain.from_iterable(map(shown, some) for some in lists)

    def batches(self, batch_size: int, **options: Any) -> ClientRows:
        """Returns the elements in batches, as a client's value for a computation; see `fedstack.batches`.

        Args:
          batch_size: The number of elements in each batch.
          **options: The options of `fedstack.batches`.
        """
        return ClientRows(self, batching_of(batch_size, **options))

    def to_data(self) -> computation_pb2.Data:
        """Converts the reference to a `data` block of the language."""
        dataset = ClientDataset()
        self.group.source.Unpack(dataset)
        dataset.client = self.key
        data = computation_pb2.Data()
        data.content.Pack(dataset)
        return data

    def __reduce__(self) -> tuple[Any, ...]:
        source = self.group.source.SerializeToString()
        return _restored, (source, self.key, self.element_type.to_proto().SerializeToString(), self.client_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientReference):
            return NotImplemented
        return self.group.source.value == other.group.source.value and self.key == other.key

    def __hash__(self) -> int:
        return hash((self.group.source.value, self.key))

    def __repr__(self) -> str:
        return f"<ClientReference to {self.client_id!r}: {self.element_type}*>"


@functools.cache
def reader_of_this_process() -> ReferenceReader:
    """Returns the reader for references without a data source, such as unpickled references."""
    return ReferenceReader()


def _restored(source: bytes, key: bytes, element: bytes, client_id: Any) -> ClientReference:
    type_spec = type_from_proto(computation_pb2.Type.FromString(element))
    read = None if current_scope().is_for_others else reader_of_this_process().blocks
    return ClientReference(ReferenceGroup(any_pb2.Any.FromString(source), [key], type_spec, read), 0, client_id)


class RegisteredClients:
    """The clients of a dataset that is registered by client with a data service.

    Args:
      service: The address of the dispatcher.
      dataset_id: The id under which the dataset is registered.
      credentials: The credentials for calls to the dispatcher and the data workers.

    Raises:
      InvalidValueError: If no dataset is registered under the id, or the dataset is not registered by client.
      WorkerUnavailableError: If the dispatcher cannot be reached.
    """

    def __init__(self, service: str, dataset_id: str, credentials: ClientCredentials | None = None) -> None:
        self._reader = reader = ReferenceReader(credentials)
        self._workers = workers = reader.workers(service)
        found = workers.io.run_sync(workers.describe(DescribeDatasetRequest(dataset_id=dataset_id)))
        self.dataset_id = dataset_id
        self.registered = ClientDataset(dispatcher=service, digest=found.digest)
        self.id_type, self.element_type = _types_of(found, dataset_id)

    @property
    def client_ids(self) -> Sequence[Any]:
        """The ids of the clients, in sorted order."""
        return self._client_ids

    @functools.cached_property
    def _client_ids(self) -> Sequence[Any]:
        keys = self._workers.io.run_sync(self._keys())
        return [id_of(key, self.id_type) for key in keys]

    async def _keys(self) -> Sequence[bytes]:
        request = ListClientsRequest(digest=self.registered.digest)
        begun = self._workers.io.time()
        while True:
            worker = await self._workers.preferred(request.digest)
            try:
                return (await self._workers.reader(worker).list_clients(request)).client
            except LOSSES as error:
                await self._workers.lose(worker, error, begun)

    def references(self, client_ids: Sequence[Any]) -> list[ClientReference]:
        """Returns references to clients, whose elements are read ahead in the order of `client_ids`."""
        source = any_pb2.Any()
        source.Pack(self.registered)
        keys = [key_of(client, self.id_type) for client in client_ids]
        group = ReferenceGroup(source, keys, self.element_type, self._reader.blocks)
        return [ClientReference(group, place, client) for place, client in enumerate(client_ids)]

    def write(self, message: ClientSelections) -> None:
        """Writes the clients' dataset into a message."""
        message.registered.CopyFrom(self.registered)
        message.dataset_id = self.dataset_id

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._reader.close()

    def __repr__(self) -> str:
        return f"{self.dataset_id!r} at {self.registered.dispatcher}"


def _types_of(found: DatasetDescription, dataset_id: str) -> tuple[TensorType, StructType]:
    """Returns the type of the clients' ids and the type of a client's elements."""
    element, column = type_from_proto(found.element), found.client_column
    members = fields_of(element) if isinstance(element, StructType) else ()
    ids = [t for name, t in members if name == column]
    if not ids or not isinstance(ids[0], TensorType):
        raise InvalidValueError(
            f"Expected a dataset that is registered by client, found {dataset_id!r}, which is registered as a whole; "
            "register it with register_dataset(service, dataset.by_client(column), ...)"
        )
    return ids[0], StructType([member for member in members if member[0] != column])
