"""Partitions rows so that each client has rows with few labels."""

from typing import Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.data.partition.labels import Labels, dealt, labels_of, shuffled_by_label
from fedstack.data.partition.partitioner import Partitioner, check_enough_rows, clients_field, even_sizes, one_of
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import whole_number_validator


@attrs.frozen
class PathologicalPartitioner(Partitioner):
    """Gives each client rows with exactly n labels (Li et al., 2022, "Federated learning on non-IID data silos").

    First each client gets n different labels, and then the rows with each label are divided evenly among its clients.
    A label that no client would have replaces a random one that several clients have.

    Attributes:
      num_partitions: The number of clients.
      partition_by: The name of the column of labels; `None` if the data is this column.
      num_classes_per_partition: The number of labels of each client, n.
      class_assignment_mode: How client k (from 0) gets its labels: "random", at random; "first-deterministic", first
        label k modulo the number of labels, and the others at random, as in the paper; "deterministic", the n labels
        from label k on, in sorted order.
    """

    num_partitions: int = clients_field
    partition_by: str | None = None
    num_classes_per_partition: int = attrs.field(kw_only=True, validator=whole_number_validator(1))
    class_assignment_mode: Literal["random", "first-deterministic", "deterministic"] = attrs.field(
        default="random", kw_only=True, validator=one_of("random", "first-deterministic", "deterministic")
    )

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], range]:
        labels = labels_of(data, self.partition_by, self._name)
        has = self._assigned(labels, random)
        sharers = has.sum(axis=0)
        if np.any(sharers > labels.counts):
            label = int(np.argmax(sharers > labels.counts))
            raise InvalidValueError(
                f"Expected a row with label {labels.values[label]!r} for each of the {sharers[label]} clients of "
                f"{self._name} that share it, found {counted(int(labels.counts[label]), 'row')}; use fewer clients, or "
                "fewer classes for each"
            )
        # Of the clients that share a label, the first get one row more if the rows cannot be divided evenly.
        rank = np.cumsum(has, axis=0) - 1
        numbers = np.where(has, labels.counts // sharers + (rank < labels.counts % sharers), 0)
        return dealt(labels, numbers.T, random), range(self.num_partitions)

    def _assigned(self, labels: Labels, random: np.random.Generator) -> NDArray[np.bool_]:
        """Returns which labels each client has, `bool[clients, labels]`."""
        clients, each, number = self.num_partitions, self.num_classes_per_partition, len(labels.values)
        if each > number:
            raise InvalidValueError(
                f"Expected num_classes_per_partition of at most {number}, which is the number of labels, found {each}"
            )
        mode = self.class_assignment_mode
        client = np.arange(clients)[:, np.newaxis]
        fixed = np.zeros((clients, number), np.bool_)
        if mode == "deterministic":
            np.put_along_axis(fixed, (client + np.arange(each)) % number, True, axis=1)
            has = fixed.copy()
        else:
            scores = random.random((clients, number))
            if mode == "first-deterministic":
                np.put_along_axis(fixed, client % number, True, axis=1)
                scores[fixed] = -1.0
            has = np.zeros((clients, number), np.bool_)
            np.put_along_axis(has, np.argsort(scores, axis=1)[:, :each], True, axis=1)
        self._complete(has, fixed, labels, random)
        return has

    def _complete(
        self, has: NDArray[np.bool_], fixed: NDArray[np.bool_], labels: Labels, random: np.random.Generator
    ) -> None:
        """Gives each label that no client has to a client, in place of a label that several clients have."""
        for label in np.flatnonzero(~has.any(axis=0)):
            replaceable = np.flatnonzero(has & ~fixed & (has.sum(axis=0) > 1))
            if not len(replaceable):
                raise InvalidValueError(
                    f"Expected a client of {self._name} for each of {len(labels.values)} labels, found none for label "
                    f"{labels.values[label]!r}; use more clients, more classes for each, or the class_assignment_mode "
                    "'random'"
                )
            client, other = divmod(int(random.choice(replaceable)), len(labels.values))
            has[client, other], has[client, label] = False, True


@attrs.frozen
class ShardPartitioner(Partitioner):
    """Sorts the rows by label, cuts them into shards, and deals the shards at random (McMahan et al., 2017, section 3).

    So the fewer shards a client has, the fewer labels. All rows are used: if they cannot be cut evenly, some shards are
    smaller. Give either of the following two numbers.

    Attributes:
      num_partitions: The number of clients.
      partition_by: The name of the column of labels; `None` if the data is this column.
      num_shards_per_partition: The number of shards of each client. Their sizes differ by at most one.
      shard_size: The number of rows in each shard except the last. The numbers of shards of two clients differ by at
        most one.
    """

    num_partitions: int = clients_field
    partition_by: str | None = None
    num_shards_per_partition: int | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(whole_number_validator(1))
    )
    shard_size: int | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(whole_number_validator(1))
    )

    def __attrs_post_init__(self) -> None:
        if (self.num_shards_per_partition is None) == (self.shard_size is None):
            found = "neither" if self.shard_size is None else "both"
            raise InvalidValueError(f"Expected either num_shards_per_partition or shard_size, found {found}")

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], range]:
        labels = labels_of(data, self.partition_by, self._name)
        rows = len(labels.codes)
        sizes = self._shard_sizes(rows)
        if len(sizes) > rows or len(sizes) < self.num_partitions:
            raise InvalidValueError(
                f"Expected from {self.num_partitions} to {rows} shards, so that each client has a shard and each shard "
                f"a row, found {len(sizes)}; use fewer clients, or another number or size of shards"
            )
        takers = np.empty(len(sizes), np.intp)
        takers[random.permutation(len(sizes))] = np.arange(len(sizes)) % self.num_partitions
        owners = np.empty(rows, np.intp)
        owners[shuffled_by_label(labels, random)] = np.repeat(takers, sizes)
        return owners, range(self.num_partitions)

    def _shard_sizes(self, rows: int) -> NDArray[np.intp]:
        check_enough_rows(self.num_partitions, rows, self._name)
        if self.shard_size is None:
            number = self.num_partitions * (self.num_shards_per_partition or 1)
            return even_sizes(rows, number) if number <= rows else np.zeros(number, np.intp)
        sizes = np.full(-(-rows // self.shard_size), self.shard_size)
        sizes[-1] += rows - sizes.sum()
        return sizes
