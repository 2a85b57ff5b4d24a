"""On a data worker, groups the elements of datasets by client.

The elements are grouped in memory or, if they are too large, by recording the splits that contain each client's
elements.
"""

import abc
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import numpy as np

from fedstack.computations.types.language import Type
from fedstack.computations.values.column_sequence import HasBlocks
from fedstack.computations.values.columns import Column, StructColumn
from fedstack.errors import FedstackError, InvalidValueError
from fedstack.foundations.caches import SharedCache
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets.client_datasets import ClientDatasets, id_of, key_of
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.reading.blocks import picked, without_first
from fedstack.service.data.reading.budget import BLOCK_ROWS, Blocks, size_in
from fedstack.service.host.limits import DataWorkerLimits, exceeded

# The maximum cost of reading the elements of all clients separately, as a multiple of the cost of reading the dataset
# once.
_MOST_TIMES = 4
# A split is considered infinite if its size exceeds this multiple of the maximum number of bytes kept in memory.
_MOST_IN_SPLIT = 64
# The approximate size of one `_Share`.
_PLACE_BYTES = 200


class GroupedClients(abc.ABC):
    """The elements of a dataset, grouped by client.

    Attributes:
      rows: Maps the id of each client in wire form to its number of elements, in the order of the ids.
    """

    def __init__(self, rows: Mapping[bytes, int]) -> None:
        self.rows = rows

    @abc.abstractmethod
    def read(self, key: bytes) -> Blocks:
        """Yields the elements of an existing client."""


@attrs.frozen
class _Share:
    """Consecutive splits, and the number of a client's elements in these splits."""

    first: int
    last: int
    rows: int


class SplitsOfClients(GroupedClients):
    """Records the splits, such as one file per client, that contain each client's elements.

    A client's elements are then read from the recorded splits only.

    Args:
      clients: The dataset by client. The dataset is read once to find the splits.
      limits: The limits of the data worker.

    Attributes:
      size: The approximate size of the record in bytes.

    Raises:
      ResourceLimitError: If most splits contain elements of many clients, a split is infinite, or the last steps of the
        dataset apply to all splits together.
    """

    def __init__(self, clients: ClientDatasets[Dataset], limits: DataWorkerLimits) -> None:
        division = clients.dataset.divided()
        self._clients = clients
        self._dataset = division.split
        self._limits = limits
        self._places: dict[Any, list[_Share]] = {client: [] for client in clients.ids_of_files}
        self._bytes = self._rows = self._rows_to_read = 0
        if division.after:
            raise self._too_many()
        self._find_places()
        self._ids = {key_of(client, clients.id_type): client for client in sorted(self._places)}
        super().__init__({key: sum(p.rows for p in self._places[client]) for key, client in self._ids.items()})

    def _too_many(self) -> FedstackError:
        most = self._limits.max_client_bytes
        advice = "write the elements of each client to a separate file, split the dataset into several datasets"
        return exceeded(self._limits, "max_client_bytes", f"at least {max(self._bytes, most + 1)}", advice)

    @property
    def size(self) -> int:
        return _PLACE_BYTES * sum(map(len, self._places.values()))

    def _find_places(self) -> None:
        dataset = self._dataset
        source, splits = dataset.source, dataset.num_splits
        together = BLOCK_ROWS if source.size == splits else 1  # many splits at a time if each split is one element
        bytes_of = size_in(dataset.element_type)
        for first in range(0, splits, together):
            last = min(first + together, splits)
            counts: dict[Any, int] = {}
            # Splits of one element are known to be finite.
            most = math.inf if together > 1 else self._bytes + _MOST_IN_SPLIT * self._limits.max_client_bytes
            for block in dataset.read(first, last):
                found, rows = self._clients.divided(cast(StructColumn, block))
                self._bytes += bytes_of(block)
                for client, mine in zip(found, rows):
                    counts[client] = counts.get(client, 0) + len(mine)
                is_large = self._bytes > self._limits.max_client_bytes
                if self._bytes > most or (is_large and not self._is_worth_it(counts)):
                    raise self._too_many()
            for client, rows in counts.items():
                self._places.setdefault(client, []).append(_Share(first, last, rows))
            self._rows += sum(counts.values())
            self._rows_to_read += sum(counts.values()) * len(counts)

    def _is_worth_it(self, counts: Mapping[Any, int]) -> bool:
        rows = sum(counts.values())
        return self._rows_to_read + rows * len(counts) <= _MOST_TIMES * (self._rows + rows)

    def read(self, key: bytes) -> Blocks:
        client = self._ids[key]
        for place in self._places[client]:
            found = 0
            for block in self._dataset.read(place.first, place.last):
                ids, rows = self._clients.divided(cast(StructColumn, block))
                mine = rows[ids.index(client)] if client in ids else np.empty(0, np.intp)
                found += len(mine)
                if len(mine):
                    rest = self._clients.without_id(cast(StructColumn, block))
                    yield rest if len(mine) == len(block) else picked(rest, mine)
            if found != place.rows:
                raise InvalidValueError(
                    f"Expected {place.rows} elements of client {client!r} in splits {place.first} to {place.last}, "
                    f"found {found}; restart the data worker, because the data has changed since its clients were "
                    "listed"
                )

    def __repr__(self) -> str:
        return f"<SplitsOfClients of {len(self.rows)} clients>"


_MOST_GROUPED = 1000


@attrs.frozen(eq=False)
class ClientElements:
    """The concatenated elements of some clients.

    Attributes:
      element: The type of the elements.
      blocks: The blocks of elements. Each block contains elements of a single client.
      rows: The number of elements of each client; empty until the first block has been read.
    """

    element: Type
    blocks: Blocks
    rows: list[int]


class ClientGroups:
    """A cache of the datasets that have been grouped by client. Any thread may use it.

    Args:
      limits: The limits of the data worker, which include the maximum number of bytes of elements in memory. The least
        recently read datasets are evicted first.
    """

    def __init__(self, limits: DataWorkerLimits) -> None:
        self._limits = limits
        self.clear()
        self._lock = threading.Lock()
        self._reading: dict[bytes, threading.Lock] = {}

    def read(
        self, digest: bytes, clients: ClientDatasets[Dataset], keys: Sequence[bytes], start: int
    ) -> ClientElements:
        """Returns the elements of some clients.

        Args:
          digest: The digest of the dataset.
          clients: The dataset by client.
          keys: The ids of the clients, in wire form.
          start: The number of elements to skip at the beginning of the concatenated elements.
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

    def find(self, digest: bytes, clients: ClientDatasets[Dataset]) -> GroupedClients:
        """Returns the elements of a dataset, grouped by client.

        If the dataset is not in the cache, the calling thread reads the dataset, and other callers that need the same
        dataset wait.

        Raises:
          ResourceLimitError: If the dataset is too large for the memory limit, and its clients cannot be read
            separately.
          FedstackError: If the data is invalid, or a function that is applied to the elements fails.
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

    def _grouped(self, clients: ClientDatasets[Dataset]) -> tuple[GroupedClients, int]:
        bounded = _Bounded(clients.dataset, self._limits)
        try:
            places, rows = clients.grouped(bounded)
        except _TooManyError:
            places = SplitsOfClients(clients, self._limits)
            return places, places.size
        return _InMemory({key_of(c, clients.id_type): place for c, place in places.items()}, rows), bounded.size

    def clear(self) -> None:
        """Removes all datasets from the cache."""
        self._held: SharedCache[bytes, GroupedClients] = SharedCache(_MOST_GROUPED, self._limits.max_client_bytes)

    def __repr__(self) -> str:
        return f"<ClientGroups of {len(self._held)} datasets, {self._held.bytes} bytes>"


class _InMemory(GroupedClients):
    """All elements of a dataset in memory, grouped by client."""

    def __init__(self, places: Mapping[bytes, slice], elements: Column) -> None:
        super().__init__({key: place.stop - place.start for key, place in places.items()})
        self._places = places
        self._elements = elements

    def read(self, key: bytes) -> Blocks:
        place = self._places[key]
        if place.start < place.stop:
            yield self._elements.slice(place.start, place.stop)


class _TooManyError(Exception):
    """The elements of a dataset are too large to be kept in memory."""


class _Bounded(HasBlocks):
    """The elements of a dataset, whose total size must not exceed the limit on bytes in memory."""

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


def _rows_of(grouped: GroupedClients, key: bytes, clients: ClientDatasets[Dataset]) -> int:
    found = grouped.rows.get(key)
    if found is not None:
        return found
    try:
        shown = id_of(key, clients.id_type)
    except FedstackError:
        shown = key
    raise InvalidValueError(
        f"Expected the id of a client of the dataset, found {describe(shown)}; the data source's client_ids lists the "
        "ids"
    )
