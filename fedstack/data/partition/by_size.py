"""Partitions rows at random into parts of given sizes."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.data.partition.partitioner import Partitioner, check_enough_rows, clients_field, even_sizes, rows_in
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import check_whole_number


def checked_sizes(value: Sequence[int] | NDArray[Any]) -> tuple[int, ...]:
    """Returns the sizes of the parts of all clients as integers.

    Raises:
      InvalidValueError: If there are none, or a size is not a whole number of at least 0.
    """
    sizes = tuple(check_whole_number("each of partition_sizes", size, 0) for size in value)
    if not sizes:
        raise InvalidValueError("Expected a size for each client in partition_sizes, found none; pass a list of sizes")
    return sizes


def check_total(sizes: Sequence[int], rows: int, where: str) -> None:
    """Checks that each row gets a client.

    Raises:
      InvalidValueError: If the sum of the sizes is not the number of rows.
    """
    if sum(sizes) != rows:
        raise InvalidValueError(
            f"Expected partition_sizes of {where} with the sum {rows}, which is the number of rows, found the sum "
            f"{sum(sizes)}; give the rows that are left over a client of their own, or leave them out of the data"
        )


def _scattered(sizes: Sequence[int] | NDArray[np.intp], random: np.random.Generator) -> NDArray[np.intp]:
    """Returns the client of each row, chosen at random."""
    return random.permutation(np.repeat(np.arange(len(sizes)), sizes))


@attrs.frozen
class IidPartitioner(Partitioner):
    """Gives each client equally many rows, chosen at random. Sizes differ by at most one.

    Attributes:
      num_partitions: The number of clients.
    """

    num_partitions: int = clients_field

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], range]:
        rows = rows_in(data, self._name)
        check_enough_rows(self.num_partitions, rows, self._name)
        return _scattered(even_sizes(rows, self.num_partitions), random), range(self.num_partitions)


@attrs.frozen
class SizePartitioner(Partitioner):
    """Gives each client as many rows as you say, chosen at random.

    Attributes:
      partition_sizes: The number of rows of each client. The sum is the number of all rows.
    """

    partition_sizes: tuple[int, ...] = attrs.field(converter=checked_sizes)

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], range]:
        check_total(self.partition_sizes, rows_in(data, self._name), self._name)
        return _scattered(self.partition_sizes, random), range(len(self.partition_sizes))


@attrs.frozen
class _WeightPartitioner(Partitioner):
    num_partitions: int = clients_field

    @abstractmethod
    def _weights(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the relative size of the part of each client, given the numbers of the clients from 1."""

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], range]:
        rows = rows_in(data, self._name)
        weights = self._weights(np.arange(1, self.num_partitions + 1, dtype=np.float64))
        sizes = (weights * rows / weights.sum()).astype(np.intp)
        sizes[-1] += rows - sizes.sum()
        if sizes.min() < 1:
            raise InvalidValueError(
                f"Expected at least one row for each of {counted(self.num_partitions, 'client')} of {self._name}, "
                f"found none for client 0 of {counted(rows, 'row')}; use fewer clients"
            )
        return _scattered(sizes, random), range(self.num_partitions)


@attrs.frozen
class LinearPartitioner(_WeightPartitioner):
    """Gives client k (from 0) a share of the rows that grows as k + 1, chosen at random; see `SquarePartitioner`.

    Attributes:
      num_partitions: The number of clients.
    """

    def _weights(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return numbers


@attrs.frozen
class SquarePartitioner(_WeightPartitioner):
    """Gives client k (from 0) a share of the rows that grows as (k + 1)^2, chosen at random.

    Sizes are rounded down, and the last client also gets what is left over. Each client must get a row.

    Attributes:
      num_partitions: The number of clients.
    """

    def _weights(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return numbers**2


@attrs.frozen
class ExponentialPartitioner(_WeightPartitioner):
    """Gives client k (from 0) a share of the rows that grows as exp(k), chosen at random; see `SquarePartitioner`.

    Attributes:
      num_partitions: The number of clients.
    """

    def _weights(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.exp(numbers - numbers[-1])
