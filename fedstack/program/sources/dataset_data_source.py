"""Selects clients of a dataset for the rounds of a program."""

from collections.abc import Sequence
from typing import Any, cast

from google.protobuf.message import DecodeError

from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.types.language import CLIENTS, FederatedType, SequenceType
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.value_text import describe
from fedstack.program.sources.client_data_source import ClientDataSource, ClientDataSourceIterator
from fedstack.proto.client_references_pb2 import ClientSelections
from fedstack.service.data.consumer.client_references import RegisteredClients
from fedstack.service.data.datasets.client_datasets import ClientDatasets
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.datasets.definitions import definition_of, read_definition
from fedstack.transport.grpc.credentials import ClientCredentials


class _Local:
    """The clients of a dataset in this process, with the same methods as `RegisteredClients`."""

    def __init__(self, clients: ClientDatasets[Dataset]) -> None:
        self._clients = clients
        self.element_type = clients.element_type

    @property
    def client_ids(self) -> Sequence[Any]:
        return self._clients.client_ids

    def references(self, client_ids: Sequence[Any]) -> Sequence[Any]:
        return [self._clients[client] for client in client_ids]

    def write(self, message: ClientSelections) -> None:
        message.definition.CopyFrom(definition_of(self._clients.dataset, Destination(takes_code=True)))
        message.definition.client_column = self._clients.column

    def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return repr(self._clients)


class DatasetDataSource(ClosesOnExit, ClientDataSource):
    """A data source that selects clients of a dataset for a program.

    For a dataset that is registered with a data service, the source returns *references*. The worker that runs a
    computation reads the elements of a reference directly, so the elements do not pass through this process. References
    can be passed to any computation in any context. For a dataset in this process, the source returns the clients'
    datasets.

        source = DatasetDataSource("localhost:5050", "readings")
        mean = train(model, source.sample(20, seed=1))

    The connections of the source are closed at the end of a `with` block, by `close()`, or once neither the source nor
    any of its references is in use.

    Args:
      service: The address of the dispatcher, or a dataset in this process that is split by client, such as
        `dataset.by_client(column)`.
      dataset_id: The id under which the dataset is registered by client. Required if `service` is an address.
      credentials: The credentials for connections to the dispatcher and the data workers.
      seed: The seed for the selections that iterators make.

    Raises:
      InvalidValueError: If no dataset is registered under `dataset_id`, or the dataset is not registered by client.
      TypeMismatchError: If the combination of arguments is invalid.
      WorkerUnavailableError: If the dispatcher cannot be reached.
    """

    def __init__(
        self,
        service: "str | ClientDatasets[Dataset]",
        dataset_id: str | None = None,
        credentials: ClientCredentials | None = None,
        *,
        seed: int = 0,
    ) -> None:
        if isinstance(service, ClientDatasets):
            if dataset_id is not None or credentials is not None:
                raise TypeMismatchError(
                    "A dataset in this process needs neither a dataset_id nor credentials; omit these arguments, or "
                    "pass the address of a dispatcher"
                )
            self._clients: RegisteredClients | _Local = _Local(service)
        elif isinstance(cast(object, service), Dataset):
            raise TypeMismatchError(
                f"Expected a dataset that is split by client, found {service!r}; pass dataset.by_client(column)"
            )
        elif not isinstance(dataset_id, str):
            raise TypeMismatchError(
                f"Expected dataset_id to be a string, found {describe(dataset_id)}; pass the id under which the "
                "dataset is registered"
            )
        else:
            self._clients = RegisteredClients(service, dataset_id, credentials)
        super().__init__(FederatedType(SequenceType(self._clients.element_type), CLIENTS), seed)

    def _ids(self) -> Sequence[Any]:
        return self._clients.client_ids

    def _values(self, client_ids: Sequence[Any]) -> list[Any]:
        # Whoever reads an unknown client's elements finds that it is unknown.
        return list(self._clients.references(client_ids))

    def iterator(self) -> "DatasetDataSourceIterator":
        """Returns an iterator that draws the clients for successive rounds."""
        return DatasetDataSourceIterator(self, 0)

    def close(self) -> None:
        """Closes the connections. Afterwards, this process cannot read the elements of references. Idempotent."""
        self._closed = True
        self._clients.close()

    def written(self, selections: int) -> bytes:
        """Returns the state of an iterator that has made so many selections."""
        seed = self._seed.to_bytes((self._seed.bit_length() + 7) // 8, "big")
        message = ClientSelections(seed=seed, selections=selections)
        self._clients.write(message)
        return message.SerializeToString(deterministic=True)

    def __repr__(self) -> str:
        return f"<DatasetDataSource of {self._clients!r}>"


class DatasetDataSourceIterator(ClientDataSourceIterator[DatasetDataSource]):
    """Draws the clients for successive rounds. Created by `DatasetDataSource.iterator`. See its base class."""

    def to_bytes(self) -> bytes:
        """Returns the state of the iterator for `from_bytes`, without credentials.

        Raises:
          CarrierError: If the dataset is in this process, and its definition cannot be serialized.
        """
        return self.source.written(self._selections)

    @classmethod
    def from_bytes(cls, buffer: bytes, credentials: ClientCredentials | None = None) -> "DatasetDataSourceIterator":
        """Returns an iterator that continues from a saved state.

        Args:
          buffer: The state, as returned by `to_bytes`.
          credentials: The credentials for connections to the dispatcher and the data workers.

        Raises:
          InvalidValueError: If `buffer` is malformed, or a different dataset is now registered under the id.
        """
        try:
            message = ClientSelections.FromString(bytes(buffer))
            if not (message.HasField("definition") or message.HasField("registered")):
                raise DecodeError("the bytes do not identify a dataset")
        except (DecodeError, TypeError) as error:
            raise InvalidValueError(
                f"Expected bytes returned by an iterator's to_bytes(), found {describe(buffer)}: {error}; pass the "
                "bytes unchanged"
            ) from error
        seed = int.from_bytes(message.seed, "big")
        if message.HasField("definition"):
            clients = read_definition(message.definition).by_client(message.definition.client_column)
            return cls(DatasetDataSource(clients, seed=seed), message.selections)
        was = message.registered
        found = cls(DatasetDataSource(was.dispatcher, message.dataset_id, credentials, seed=seed), message.selections)
        if ClientSelections.FromString(found.to_bytes()).registered != was:
            found.source.close()
            raise InvalidValueError(
                f"Expected the dataset {was.digest.hex()[:16]}… under the id {message.dataset_id!r}, found a different "
                "dataset under this id; create a new iterator"
            )
        return found
