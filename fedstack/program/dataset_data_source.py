"""Selects clients of a dataset for the rounds of a program."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from google.protobuf.message import DecodeError

from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.types.language import (
    CLIENTS,
    FederatedDataSource,
    FederatedDataSourceIterator,
    FederatedType,
    SequenceType,
)
from fedstack.computations.values.sequences import MAX_SEED
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.number_checks import checked_positive, checked_seed
from fedstack.foundations.value_text import describe
from fedstack.proto.client_references_pb2 import ClientSelections
from fedstack.service.data.consumer.client_references import RegisteredClients
from fedstack.service.data.datasets.client_datasets import ClientDatasets, drawn
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.datasets.definitions import definition_of, read_definition
from fedstack.transport.grpc.credentials import ClientCredentials


class _Local:
    """Clients of a dataset of this process, with the methods of `RegisteredClients`."""

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


class DatasetDataSource(ClosesOnExit, FederatedDataSource):
    """Clients of a dataset, as a data source of programs.

    From a dataset that is registered at a data service it selects *references*: the worker that runs a computation
    reads the elements itself, and none of them pass through this process. References can be passed to any computation
    in any context. From a dataset in this process it selects the clients' datasets.

        source = DatasetDataSource("localhost:5050", "readings")
        mean = train(model, source.sample(20, seed=1))

    Its connections are closed at the end of a block, by `close()`, and when neither it nor its references are
    referenced any more.

    Args:
      service: The address of the dispatcher; or a dataset of this process by client, `dataset.by_client(column)`.
      dataset_id: The id that the dataset is registered under, by client.
      credentials: The credentials to dial the dispatcher and the data workers with.
      seed: The seed of the selections of iterators.

    Raises:
      InvalidValueError: If no dataset is registered under that id, or not by client.
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
                raise TypeMismatchError("Expected no dataset_id and no credentials beside a dataset of this process")
            self._clients: RegisteredClients | _Local = _Local(service)
        elif isinstance(cast(object, service), Dataset):
            raise TypeMismatchError(f"Expected by_client(column) of a dataset, found {service!r} itself")
        elif not isinstance(dataset_id, str):
            raise TypeMismatchError(
                f"Expected the id of a dataset, found {describe(dataset_id)}; give what it is registered under"
            )
        else:
            self._clients = RegisteredClients(service, dataset_id, credentials)
        self._seed = checked_seed("seed", seed, MAX_SEED)
        self._type = FederatedType(SequenceType(self._clients.element_type), CLIENTS)

    @property
    def federated_type(self) -> FederatedType:
        """The type of selections: a sequence for each client."""
        return self._type

    @property
    def client_ids(self) -> list[Any]:
        """The ids of all clients, in order: numbers, or `str` for text."""
        return list(self._clients.client_ids)

    def sample(self, n: int, seed: int) -> list[Any]:
        """Returns the values of some clients for computations, each client at most once.

        Args:
          n: The number of clients.
          seed: The seed of the selection.

        Raises:
          InvalidValueError: If there are fewer clients.
        """
        return self._drawn(n, seed, ())

    def select(self, client_ids: Sequence[Any]) -> list[Any]:
        """Returns the values of clients for computations.

        Args:
          client_ids: Their ids, in a list or a tuple. Reading the elements of an unknown client raises an error.

        Raises:
          TypeMismatchError: If they are not a list.
        """
        if isinstance(client_ids, (str, bytes, Mapping)) or not isinstance(cast(object, client_ids), Iterable):
            raise TypeMismatchError(
                f"Expected a list of ids of clients, found {describe(client_ids)}; at select; put one into a list"
            )
        return list(self._clients.references(list(client_ids)))

    def iterator(self) -> "DatasetDataSourceIterator":
        """Returns an iterator that draws clients for one round after the other."""
        return DatasetDataSourceIterator(self, 0)

    def close(self) -> None:
        """Closes the connections; after that this process cannot read its references. Idempotent."""
        self._closed = True
        self._clients.close()

    def _drawn(self, n: int, seed: int, key: tuple[int, ...]) -> list[Any]:
        ids = self._clients.client_ids
        return list(self._clients.references([ids[place] for place in drawn(n, seed, key, len(ids))]))

    def _selected(self, k: int | None, number: int) -> list[Any]:
        """Returns the selection with the given number; all clients in order without `k`."""
        if k is None:
            return list(self._clients.references(self._clients.client_ids))
        return self._drawn(checked_positive("k", k), self._seed, (number,))

    def _written(self, selections: int) -> bytes:
        seed = self._seed.to_bytes((self._seed.bit_length() + 7) // 8, "big")
        message = ClientSelections(seed=seed, selections=selections)
        self._clients.write(message)
        return message.SerializeToString(deterministic=True)

    def __repr__(self) -> str:
        return f"<DatasetDataSource of {self._clients!r}>"


class DatasetDataSourceIterator(FederatedDataSourceIterator):
    """Draws clients for one round after the other; made by `DatasetDataSource.iterator`.

    Attributes:
      source: The data source.

    Args:
      source: The data source.
      selections: The number of selections so far.
    """

    def __init__(self, source: DatasetDataSource, selections: int) -> None:
        self.source = source
        self._selections = selections

    @property
    def federated_type(self) -> FederatedType:
        """The type of selections."""
        return self.source.federated_type

    def select(self, k: int | None = None) -> list[Any]:
        """Returns the values of the clients of the next round for computations.

        Args:
          k: How many clients, each at most once; by default all of them, in order.

        Raises:
          InvalidValueError: If there are fewer clients, or `k` is not positive.
        """
        found = self.source._selected(k, self._selections)  # pyright: ignore[reportPrivateUsage]
        self._selections += 1
        return found

    def to_bytes(self) -> bytes:
        """Returns the state of the iterator for `from_bytes`, without credentials.

        Raises:
          CarrierError: If the dataset is of this process, and cannot be written.
        """
        return self.source._written(self._selections)  # pyright: ignore[reportPrivateUsage]

    @classmethod
    def from_bytes(cls, buffer: bytes, credentials: ClientCredentials | None = None) -> "DatasetDataSourceIterator":
        """Returns an iterator that continues where another one was.

        Args:
          buffer: The result of its `to_bytes`.
          credentials: The credentials to dial the dispatcher and the data workers with.

        Raises:
          InvalidValueError: If `buffer` is malformed, or another dataset is registered under the id now.
        """
        try:
            message = ClientSelections.FromString(bytes(buffer))
            if not (message.HasField("definition") or message.HasField("registered")):
                raise DecodeError("they name no dataset")
        except (DecodeError, TypeError) as error:
            raise InvalidValueError(
                f"Expected the bytes that an iterator gave with to_bytes(), found {describe(buffer)}: {error}"
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
                f"Expected the dataset {was.digest.hex()[:16]}… under the id {message.dataset_id!r}, found another one "
                "there; begin a new iterator"
            )
        return found

    def __repr__(self) -> str:
        return f"<DatasetDataSourceIterator of {self.source!r}, after {self._selections} selections>"
