"""Partitions rows by label with proportions drawn from a Dirichlet distribution."""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.data.partition.by_size import check_total, checked_sizes
from fedstack.data.partition.labels import Labels, dealt, labels_of
from fedstack.data.partition.partitioner import Partitioner, check_enough_rows, clients_field
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import check_bool, check_number, whole_number_validator

_MOST_DRAWS = 10  # as in flwr_datasets


def _checked_alpha(value: "float | Sequence[float] | NDArray[Any]") -> "float | tuple[float, ...]":
    """Returns the alphas as Python numbers.

    Raises:
      InvalidValueError: If a number is not positive and finite.
    """
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, str):
        check_number("alpha", value, positive=True)
        return float(value)
    for number in value:
        check_number("each alpha", number, positive=True)
    return tuple(map(float, value))


def _alphas(alpha: "float | tuple[float, ...]", number: int, what: str) -> NDArray[np.float64]:
    """Returns one alpha for each of the clients or labels, `float64[number]`."""
    if isinstance(alpha, tuple) and len(alpha) != number:
        raise InvalidValueError(f"Expected one alpha, or one for each of {counted(number, what)}, found {len(alpha)}")
    return np.full(number, alpha) if isinstance(alpha, float) else np.array(alpha)


def _drawn(alphas: NDArray[np.float64], number: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Returns samples of a Dirichlet distribution, `float64[number, len(alphas)]`."""
    drawn = random.dirichlet(alphas, number)
    if not np.allclose(drawn.sum(axis=1), 1.0):
        raise InvalidValueError(
            f"Expected an alpha with which proportions can be computed, found {alphas.min()} to {alphas.max()}; for "
            "equal proportions use 1e6, and for one label each 1e-6"
        )
    return drawn


@attrs.frozen
class DirichletPartitioner(Partitioner):
    """Divides the rows with each label in proportions from a Dirichlet distribution over the clients.

    With a small alpha, most rows with a label go to few clients; with a large one, each client has nearly the same
    share of each label (Yurochkin et al., 2019, "Bayesian nonparametric federated learning of neural networks").

    Attributes:
      num_partitions: The number of clients.
      partition_by: The name of the column of labels; `None` if the data is this column.
      alpha: The concentration, a positive number, or one for each client.
      min_partition_size: The least number of rows of a client. Proportions are drawn up to ten times until each client
        has as many. 0 allows clients without rows.
      self_balancing: Whether a client that has more than an equal share of all rows gets no rows with further labels.
        Then sizes differ less, but the order of the labels matters.
    """

    num_partitions: int = clients_field
    partition_by: str | None = None
    alpha: "float | tuple[float, ...]" = attrs.field(kw_only=True, converter=_checked_alpha)
    min_partition_size: int = attrs.field(default=10, kw_only=True, validator=whole_number_validator(0))
    self_balancing: bool = attrs.field(
        default=False, kw_only=True, converter=lambda value: check_bool("self_balancing", value)
    )

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], range]:
        labels = labels_of(data, self.partition_by, self._name)
        clients, rows = self.num_partitions, len(labels.codes)
        if self.min_partition_size:
            check_enough_rows(clients, rows, self._name)
        alphas = _alphas(self.alpha, clients, "client")
        smallest: list[int] = []
        for _ in range(_MOST_DRAWS if clients * self.min_partition_size <= rows else 0):
            proportions = _drawn(alphas, len(labels.values), random)
            numbers = self._balanced(proportions, labels) if self.self_balancing else _rounded(proportions, labels)
            smallest.append(int(numbers.sum(axis=0).min()))
            if smallest[-1] >= self.min_partition_size:
                return dealt(labels, numbers, random), range(clients)
        found = f"{max(smallest)} rows in the best of {_MOST_DRAWS} draws" if smallest else f"{rows} rows in all"
        raise InvalidValueError(
            f"Expected at least {counted(self.min_partition_size, 'row')} for each of {counted(clients, 'client')}, "
            f"found {found}; use a smaller min_partition_size (0 allows clients without rows), a larger alpha, or "
            "fewer clients"
        )

    def _balanced(self, proportions: NDArray[np.float64], labels: Labels) -> NDArray[np.intp]:
        numbers = np.zeros(proportions.shape, np.intp)
        sizes, share = np.zeros(self.num_partitions, np.intp), len(labels.codes) / self.num_partitions
        for label, weights in enumerate(proportions):
            open_weights = np.where(sizes > share, 0.0, weights)
            if not (total := open_weights.sum()) > 0:  # only clients that have enough would get these rows
                open_weights = (sizes <= share).astype(np.float64)
                total = open_weights.sum()
            numbers[label] = _cut(open_weights / total, int(labels.counts[label]))
            sizes += numbers[label]
        return numbers


def _rounded(proportions: NDArray[np.float64], labels: Labels) -> NDArray[np.intp]:
    return np.stack([_cut(shares, int(count)) for shares, count in zip(proportions, labels.counts)])


def _cut(shares: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Returns how many of `count` rows each client gets, `intp[clients]`, by cutting them at the rounded shares."""
    stops = np.minimum(np.cumsum(shares) * count, count).astype(np.intp)
    stops[np.flatnonzero(shares)[-1] :] = count  # the rounded sum of the shares may be slightly less than 1
    return np.diff(stops, prepend=0)


@attrs.frozen
class InnerDirichletPartitioner(Partitioner):
    """Gives each client a number of rows that you say, with labels in proportions from a Dirichlet distribution.

    Each client draws its proportions of labels, and then its rows. Where a label runs out, the clients that drew it
    share its last rows at random, and draw other labels instead (after Acar et al., 2021, "Federated learning based on
    dynamic regularization", whose clients draw one row at a time).

    Attributes:
      partition_sizes: The number of rows of each client. The sum is the number of all rows.
      partition_by: The name of the column of labels; `None` if the data is this column.
      alpha: The concentration, a positive number, or one for each label in sorted order.
    """

    partition_sizes: tuple[int, ...] = attrs.field(converter=checked_sizes)
    partition_by: str | None = None
    alpha: "float | tuple[float, ...]" = attrs.field(kw_only=True, converter=_checked_alpha)

    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], range]:
        labels = labels_of(data, self.partition_by, self._name)
        check_total(self.partition_sizes, len(labels.codes), self._name)
        alphas = _alphas(self.alpha, len(labels.values), "label")
        prior = _drawn(alphas, len(self.partition_sizes), random)
        missing, left = np.array(self.partition_sizes), labels.counts.copy()
        numbers = np.zeros((len(missing), len(left)), np.intp)
        while missing.any():  # each turn either ends the loop or uses up a label
            chances = prior * (left > 0)
            # A client for which all likely labels have run out takes what is left.
            chances = np.where(chances.sum(axis=1, keepdims=True) > 0, chances, left.astype(np.float64))
            wanted = random.multinomial(missing, chances / chances.sum(axis=1, keepdims=True))
            for label in np.flatnonzero(wanted.sum(axis=0) > left):
                wanted[:, label] = random.multivariate_hypergeometric(wanted[:, label], left[label], method="marginals")
            numbers += wanted
            missing -= wanted.sum(axis=1)
            left -= wanted.sum(axis=0)
        return dealt(labels, numbers.T, random), range(len(missing))
