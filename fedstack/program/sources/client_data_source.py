"""Draws clients for the rounds of a program, whatever their data are."""

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from fedstack.computations.types.language import FederatedDataSource, FederatedDataSourceIterator, FederatedType
from fedstack.computations.values.sequences import MAX_SEED
from fedstack.errors import TypeMismatchError
from fedstack.foundations.number_checks import checked_positive, checked_seed
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets.client_datasets import drawn

_S = TypeVar("_S", bound="ClientDataSource")


class ClientDataSource(FederatedDataSource):
    """The base class of data sources that draw clients.

    Args:
      federated_type: The type of a selection.
      seed: The seed for the selections that iterators make.
    """

    def __init__(self, federated_type: FederatedType, seed: int) -> None:
        self._type = federated_type
        self._seed = checked_seed("seed", seed, MAX_SEED)

    @abc.abstractmethod
    def _ids(self) -> Sequence[Any]:
        """Returns the ids of all clients, in sorted order."""

    @abc.abstractmethod
    def _values(self, client_ids: Sequence[Any]) -> list[Any]:
        """Returns the values of the given clients."""

    @property
    def federated_type(self) -> FederatedType:
        """The type of a selection."""
        return self._type

    @property
    def client_ids(self) -> list[Any]:
        """The ids of all clients, in sorted order. Text ids are `str`, and other ids are numbers."""
        return list(self._ids())

    def sample(self, n: int, seed: int) -> list[Any]:
        """Returns the values of randomly drawn clients, to be passed to computations. No client is drawn twice.

        Args:
          n: The number of clients to draw.
          seed: The seed of the selection.

        Raises:
          InvalidValueError: If there are fewer than `n` clients.
        """
        return self._drawn(n, seed, ())

    def select(self, client_ids: Sequence[Any]) -> list[Any]:
        """Returns the values of the given clients, to be passed to computations.

        Args:
          client_ids: The ids of the clients, in a list or a tuple.

        Raises:
          TypeMismatchError: If `client_ids` is a string, a mapping, or not iterable.
        """
        if isinstance(client_ids, (str, bytes, Mapping)) or not isinstance(cast(object, client_ids), Iterable):
            raise TypeMismatchError(
                f"Expected a list of client ids for select, found {describe(client_ids)}; put a single id into a list"
            )
        return self._values(list(client_ids))

    def selection(self, k: int | None, number: int) -> list[Any]:
        """Returns the values that an iterator selects.

        Args:
          k: The number of clients; `None` for all, in sorted order.
          number: The number of the selection, from 0.

        Raises:
          InvalidValueError: If there are fewer than `k` clients, or `k` is not positive.
        """
        if k is None:
            return self._values(self._ids())
        return self._drawn(checked_positive("k", k), self._seed, (number,))

    def _drawn(self, n: int, seed: int, key: tuple[int, ...]) -> list[Any]:
        ids = self._ids()
        return self._values([ids[place] for place in drawn(n, seed, key, len(ids))])


class ClientDataSourceIterator(FederatedDataSourceIterator, Generic[_S]):
    """The base class of iterators that draw the clients for successive rounds.

    Attributes:
      source: The data source.

    Args:
      source: The data source.
      selections: The number of selections so far.
    """

    def __init__(self, source: _S, selections: int) -> None:
        self.source = source
        self._selections = selections

    @property
    def federated_type(self) -> FederatedType:
        """The type of a selection."""
        return self.source.federated_type

    def select(self, k: int | None = None) -> list[Any]:
        """Draws the clients for the next round, and returns their values, to be passed to computations.

        Args:
          k: The number of clients to draw, each at most once. By default, all clients are returned, in the order of
            `client_ids`.

        Raises:
          InvalidValueError: If there are fewer than `k` clients, or `k` is not positive.
        """
        found = self.source.selection(k, self._selections)
        self._selections += 1
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.source!r}, after {self._selections} selections>"
