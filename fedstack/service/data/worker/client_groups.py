"""Groups datasets by client at a data worker: each is read once, held in memory, and read by client from there."""

import threading
from collections.abc import Iterator, Mapping, Sequence

import attrs

from fedstack.computations.types.bounded_cache import SharedCache
from fedstack.computations.types.language import TensorType, Type
from fedstack.computations.values.column_sequence import HasBlocks
from fedstack.computations.values.columns import Column
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import FedstackError, InvalidValueError
from fedstack.service.data.datasets.blocks import Blocks, size_in
from fedstack.service.data.datasets.client_datasets import ClientDatasets, id_of, key_of
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.limits.limits import DataWorkerLimits, exceeded

_MOST_GROUPED = 1000


@attrs.frozen(eq=False)
class GroupedDataset:
    """The elements of a dataset, client by client.

    Attributes:
      places: Where those of each client are, by its id as it travels.
      rows: All elements.
      id_type: The type of ids.
    """

    places: Mapping[bytes, slice]
    rows: Column
    id_type: TensorType

    def place(self, key: bytes) -> slice:
        """Returns where the elements of a client are.

        Raises:
          InvalidValueError: If there is no such client.
        """
        found = self.places.get(key)
        if found is None:
            raise InvalidValueError(
                f"Expected the id of a client of the dataset, found {describe(_shown(key, self.id_type))}; see "
                "client_ids of its data source"
            )
        return found


@attrs.frozen(eq=False)
class ClientElements:
    """The elements of some clients, of one after the other.

    Attributes:
      element: Their type.
      blocks: Yields them, each client's in a block of its own, without copying.
      rows: How many each client has; empty until the first block is there.
    """

    element: Type
    blocks: Blocks
    rows: list[int]


class ClientGroups:
    """The datasets that have been grouped by client. Any thread may ask.

    Args:
      limits: How many bytes of elements may be held. Those that were read longest ago make room.
    """

    def __init__(self, limits: DataWorkerLimits) -> None:
        self._limits = limits
        self.clear()
        self._lock = threading.Lock()
        self._reading: dict[bytes, threading.Lock] = {}

    def read(
        self, digest: bytes, clients: ClientDatasets[Dataset], keys: Sequence[bytes], start: int
    ) -> ClientElements:
        """Returns elements of clients.

        Args:
          digest: Stands for the dataset.
          clients: The dataset by client.
          keys: The ids of the clients, as they travel.
          start: How many of all these elements to leave out at the beginning.
        """
        rows: list[int] = []

        def blocks() -> Iterator[Column]:
            grouped = self.find(digest, clients)
            places = list(map(grouped.place, keys))
            rows.extend(place.stop - place.start for place in places)
            left_out = start
            for place in places:
                first = min(place.start + left_out, place.stop)
                left_out -= first - place.start
                if first < place.stop:
                    yield grouped.rows.slice(first, place.stop)

        return ClientElements(clients.element_type, blocks(), rows)

    def find(self, digest: bytes, clients: ClientDatasets[Dataset]) -> GroupedDataset:
        """Returns a dataset by client; it is read if it is not held. Others that want it wait meanwhile.

        Raises:
          ResourceLimitError: If it has more bytes than may be held.
          FedstackError: What is wrong with the data, or the functions that are applied to them.
        """
        with self._lock:
            reading = self._reading.setdefault(digest, threading.Lock())
        with reading:
            found = self._held.get(digest)
            if found is None:
                bounded = _Bounded(clients.dataset, self._limits)
                places, rows = clients.grouped(bounded)
                id_type = clients.id_type
                found = GroupedDataset({key_of(c, id_type): place for c, place in places.items()}, rows, id_type)
                self._held.put(digest, found, bounded.size)
        with self._lock:
            self._reading.pop(digest, None)
        return found

    def clear(self) -> None:
        """Holds nothing any more."""
        self._held: SharedCache[bytes, GroupedDataset] = SharedCache(_MOST_GROUPED, self._limits.max_client_bytes)

    def __repr__(self) -> str:
        return f"<ClientGroups of {len(self._held)} datasets, {self._held.bytes} bytes>"


class _Bounded(HasBlocks):
    """The elements of a dataset, as long as they are not too many bytes together."""

    def __init__(self, dataset: Dataset, limits: DataWorkerLimits) -> None:
        self._dataset = dataset
        self._limits = limits
        self.size = 0

    @property
    def element_type(self) -> Type:
        return self._dataset.element_type

    @property
    def is_endless(self) -> bool:
        return self._dataset.is_endless

    def blocks(self) -> Iterator[Column]:
        bytes_of = size_in(self.element_type)
        for block in self._dataset.blocks():
            self.size += bytes_of(block)
            if self.size > self._limits.max_client_bytes:
                raise exceeded(self._limits, "max_client_bytes", f"at least {self.size}", "divide the dataset")
            yield block

    def __repr__(self) -> str:
        return repr(self._dataset)


def _shown(key: bytes, id_type: TensorType) -> object:
    try:
        return id_of(key, id_type)
    except FedstackError:
        return key
