"""Reads the elements of clients where they are, for datasets that are too large to be held."""

import abc
import math
from collections.abc import Mapping
from typing import Any, cast

import attrs
import numpy as np

from fedstack.computations.values.columns import StructColumn
from fedstack.errors import FedstackError, InvalidValueError
from fedstack.service.data.datasets.blocks import BLOCK_ROWS, Blocks, picked, size_in
from fedstack.service.data.datasets.client_datasets import ClientDatasets, key_of
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.host.limits import DataWorkerLimits, exceeded

# To read the elements of all clients may take so many times what it takes to read the dataset.
_MOST_TIMES = 4
# A split that has so many times what may be held is taken for one without end.
_MOST_IN_SPLIT = 64
# What it takes to remember one place.
_PLACE_BYTES = 200


class ClientRows(abc.ABC):
    """The elements of a dataset, client by client.

    Attributes:
      rows: How many each client has, by its id as it travels; in the order of ids.
    """

    def __init__(self, rows: Mapping[bytes, int]) -> None:
        self.rows = rows

    @abc.abstractmethod
    def read(self, key: bytes) -> Blocks:
        """Yields the elements of a client that there is."""


@attrs.frozen
class _Place:
    """Consecutive splits, and how many elements of a client are there."""

    first: int
    last: int
    rows: int


class SplitsOfClients(ClientRows):
    """In which splits the elements of each client are, such as a file for each client; only these are read for it.

    Args:
      clients: The dataset by client. It is read once for this.
      limits: Those of the data worker.

    Attributes:
      size: About how many bytes it takes to remember that.

    Raises:
      ResourceLimitError: If most splits have elements of many clients, one has no end, or what is done last is done to
        all together.
    """

    def __init__(self, clients: ClientDatasets[Dataset], limits: DataWorkerLimits) -> None:
        division = clients.dataset.divided()
        self._clients = clients
        self._dataset = division.split
        self._limits = limits
        self._places: dict[Any, list[_Place]] = {client: [] for client in clients.ids_of_files}
        self._bytes = self._rows = self._rows_to_read = 0
        if division.after:
            raise self._too_many()
        self._find_places()
        self._ids = {key_of(client, clients.id_type): client for client in sorted(self._places)}
        super().__init__({key: sum(p.rows for p in self._places[client]) for key, client in self._ids.items()})

    def _too_many(self) -> FedstackError:
        most = self._limits.max_client_bytes
        advice = "write the elements of each client into a file of its own, divide the dataset"
        return exceeded(self._limits, "max_client_bytes", f"at least {max(self._bytes, most + 1)}", advice)

    @property
    def size(self) -> int:
        return _PLACE_BYTES * sum(map(len, self._places.values()))

    def _find_places(self) -> None:
        dataset = self._dataset
        source, splits = dataset.source, dataset.num_splits
        together = BLOCK_ROWS if source.size == splits else 1  # where each split is one element
        bytes_of = size_in(dataset.element_type)
        for first in range(0, splits, together):
            last = min(first + together, splits)
            counts: dict[Any, int] = {}
            # Of splits of one element it is known that they end.
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
                self._places.setdefault(client, []).append(_Place(first, last, rows))
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
                    f"found {found}: the data have changed since they were listed; start the data worker again"
                )

    def __repr__(self) -> str:
        return f"<SplitsOfClients of {len(self.rows)} clients>"
