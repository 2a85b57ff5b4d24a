"""Groups datasets by client at a data worker: what is held in memory, and what is read again when it is asked for."""

import threading
from collections.abc import Iterator, Mapping, Sequence

import attrs

from fedstack.computations.types.bounded_cache import SharedCache
from fedstack.computations.types.language import Type
from fedstack.computations.values.column_sequence import HasBlocks
from fedstack.computations.values.columns import Column
from fedstack.errors import FedstackError, InvalidValueError
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets.blocks import Blocks, size_in, without_first
from fedstack.service.data.datasets.client_datasets import ClientDatasets, id_of, key_of
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.worker.client_places import ClientRows, SplitsOfClients
from fedstack.service.host.limits import DataWorkerLimits

_MOST_GROUPED = 1000


@attrs.frozen(eq=False)
class ClientElements:
    """The elements of some clients, of one after the other.

    Attributes:
      element: Their type.
      blocks: Yields them, no block with those of several clients.
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
            rows.extend(_rows_of(grouped, key, clients) for key in keys)
            left_out = start
            for key, count in zip(keys, rows):
                if left_out < count:
                    yield from without_first(grouped.read(key), left_out)
                left_out = max(0, left_out - count)

        return ClientElements(clients.element_type, blocks(), rows)

    def find(self, digest: bytes, clients: ClientDatasets[Dataset]) -> ClientRows:
        """Returns a dataset by client; it is read if it is not known. Others that want it wait meanwhile.

        Raises:
          ResourceLimitError: If it has more bytes than may be held, and cannot be read client by client.
          FedstackError: What is wrong with the data, or the functions that are applied to them.
        """
        with self._lock:
            reading = self._reading.setdefault(digest, threading.Lock())
        with reading:
            found = self._held.get(digest)
            if found is None:
                found, size = self._grouped(clients)
                self._held.put(digest, found, size)
        with self._lock:
            self._reading.pop(digest, None)
        return found

    def _grouped(self, clients: ClientDatasets[Dataset]) -> tuple[ClientRows, int]:
        bounded = _Bounded(clients.dataset, self._limits)
        try:
            places, rows = clients.grouped(bounded)
        except _TooManyError:
            places = SplitsOfClients(clients, self._limits)
            return places, places.size
        return _Held({key_of(c, clients.id_type): place for c, place in places.items()}, rows), bounded.size

    def clear(self) -> None:
        """Holds nothing any more."""
        self._held: SharedCache[bytes, ClientRows] = SharedCache(_MOST_GROUPED, self._limits.max_client_bytes)

    def __repr__(self) -> str:
        return f"<ClientGroups of {len(self._held)} datasets, {self._held.bytes} bytes>"


class _Held(ClientRows):
    """All elements of a dataset, client by client."""

    def __init__(self, places: Mapping[bytes, slice], elements: Column) -> None:
        super().__init__({key: place.stop - place.start for key, place in places.items()})
        self._places = places
        self._elements = elements

    def read(self, key: bytes) -> Blocks:
        place = self._places[key]
        if place.start < place.stop:
            yield self._elements.slice(place.start, place.stop)


class _TooManyError(Exception):
    """The elements of a dataset are too many bytes to be held."""


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
                raise _TooManyError
            yield block

    def __repr__(self) -> str:
        return repr(self._dataset)


def _rows_of(grouped: ClientRows, key: bytes, clients: ClientDatasets[Dataset]) -> int:
    found = grouped.rows.get(key)
    if found is not None:
        return found
    try:
        shown = id_of(key, clients.id_type)
    except FedstackError:
        shown = key
    raise InvalidValueError(
        f"Expected the id of a client of the dataset, found {describe(shown)}; see client_ids of its data source"
    )
