"""Partitions rows by a column: by the ids of those who own them, or by the order of a number."""

from typing import Any, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.data.partition.labels import column_of, labels_of
from fedstack.data.partition.partitioner import Partitioner, check_enough_rows, clients_field, even_sizes, one_of
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import check_number, whole_number_validator


def _check_strictness(_: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    check_number(attribute.name, value)
    if value > 1:
        raise InvalidValueError(f"Expected strictness from 0 to 1, found {value}")


@attrs.frozen
class NaturalIdPartitioner(Partitioner):
    """Gives each client the rows with its id, as `fedstack.by_client` does. Clients are sorted by id.

    Attributes:
      partition_by: The name of the column of ids; `None` if the data is this column.
    """

    partition_by: str | None = None

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], list[Any]]:
        ids = labels_of(data, self.partition_by, self._name, "client id")
        return ids.codes, ids.values


@attrs.frozen
class GroupedNaturalIdPartitioner(Partitioner):
    """Gives each client the rows of several ids, so that clients are organizations of users. Ids are sorted.

    The ids of the clients of the partition are tuples of the ids in each group.

    Attributes:
      partition_by: The name of the column of ids; `None` if the data is this column.
      group_size: The number of ids of each client.
      mode: What becomes of ids that do not fill a group: "allow-smaller", they are the last group; "allow-bigger", the
        first group has them as well; "strict", they are an error.
    """

    partition_by: str | None = None
    group_size: int = attrs.field(kw_only=True, validator=whole_number_validator(1))
    mode: Literal["allow-smaller", "allow-bigger", "strict"] = attrs.field(
        default="allow-smaller", kw_only=True, validator=one_of("allow-smaller", "allow-bigger", "strict")
    )

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], list[Any]]:
        ids = labels_of(data, self.partition_by, self._name, "client id")
        rest = len(ids.values) % self.group_size
        if rest and self.mode == "strict":
            raise InvalidValueError(
                f"Expected a multiple of {self.group_size} ids for {self._name}, found {len(ids.values)}; use another "
                "group_size or mode"
            )
        numbers = np.arange(len(ids.values))
        if self.mode == "allow-bigger":
            numbers = np.maximum(numbers - rest, 0)
        groups = numbers // self.group_size
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        members = [tuple(ids.values[a:b]) for a, b in zip(starts, [*starts[1:], len(ids.values)])]
        return groups[ids.codes], members


@attrs.frozen
class ContinuousPartitioner(Partitioner):
    """Sorts the rows by a number with noise, and gives each client equally many neighbouring rows.

    Rows are sorted by strictness * z + (1 - strictness) * noise, where z is the number, standardized to mean 0 and
    standard deviation 1, and the noise is drawn from the standard normal distribution.

    Attributes:
      num_partitions: The number of clients.
      partition_by: The name of the column of numbers; `None` if the data is this column.
      strictness: A number from 0 (rows are divided at random) to 1 (rows are sorted by the column alone).
    """

    num_partitions: int = clients_field
    partition_by: str | None = None
    strictness: float = attrs.field(kw_only=True, validator=_check_strictness)

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], range]:
        column = column_of(data, self.partition_by, self._name)
        check_enough_rows(self.num_partitions, len(column), self._name)
        if column.dtype.kind not in "biuf":
            raise TypeMismatchError(f"Expected a column of numbers for {self._name}, found {column.dtype}")
        numbers = column.astype(np.float64)
        if not np.isfinite(numbers).all():
            row = int(np.argmin(np.isfinite(numbers)))
            raise InvalidValueError(
                f"Expected finite numbers for {self._name}, found {numbers[row]} in row {row}; drop these rows"
            )
        spread = numbers.std()
        if self.strictness > 0 and not spread > 0:
            raise InvalidValueError(
                f"Expected at least two different numbers for {self._name}, found {numbers[0]} in all "
                f"{counted(len(numbers), 'row')}; use another column, or a strictness of 0"
            )
        scores = (1 - self.strictness) * random.standard_normal(len(numbers))
        if self.strictness > 0:
            scores += self.strictness * (numbers - numbers.mean()) / spread
        rows = random.permutation(len(numbers))  # so that rows with equal scores are in random order
        owners = np.empty(len(numbers), np.intp)
        owners[rows[np.argsort(scores[rows], kind="stable")]] = np.repeat(
            np.arange(self.num_partitions), even_sizes(len(numbers), self.num_partitions)
        )
        return owners, range(self.num_partitions)
