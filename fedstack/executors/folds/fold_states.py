"""Defines the states of aggregations (sums, means and extremes), which combine the results of clients.

A state accepts blocks of clients in any order and from several threads, and folds along the fixed tree of `tree_fold`.
Large results are added one by one, while each is still in the cache (`stream`). The states of secure sums and of the
general aggregation are in `aggregations.py` and `aggregate_state.py`.
"""

import abc
import threading
from collections.abc import Callable, Sequence, Set
from typing import cast

import numpy as np

from fedstack.computations.codec.arrays import float_limits
from fedstack.computations.plan.tasks import Fold
from fedstack.computations.types.language import TensorType, Type
from fedstack.computations.types.type_structure import flattener, full_array, tensor_leaves, unflatten
from fedstack.computations.values.columns import Column, ListColumn, ScalarColumn
from fedstack.computations.values.tensor_values import kind_of_dtype, quiet_context, read_only
from fedstack.executors.folds.leaf_fold import LeafFold, LeafStream, leaf_columns
from fedstack.executors.folds.tree_fold import Partial


class FoldState(abc.ABC):
    """The state of an aggregation over a range of clients."""

    @property
    def merges_in_any_order(self) -> bool:
        """Whether `merge` accepts the results of other ranges in any order instead of only in client order."""
        return False

    @abc.abstractmethod
    def feed(self, start: int, columns: Sequence[Column]) -> None:
        """Adds the results of consecutive clients.

        Args:
          start: The index of the first client.
          columns: One column per operand of the aggregation.
        """

    @abc.abstractmethod
    def skip(self, clients: range) -> None:
        """Adds consecutive clients that are absent: nothing stands in for them."""

    def check(self, start: int, columns: Sequence[Column]) -> None:  # noqa: B027
        """Checks the results of consecutive clients before they are added.

        Raises:
          InvalidValueError: If a client's result is not allowed.
        """

    @abc.abstractmethod
    def partials(self) -> object:
        """Returns the partial results, for the `merge` method of another state of the same aggregation."""

    def take(self, clients: range, without: Set[int] = frozenset()) -> object | None:
        """Removes and returns the partial results of a range of clients, in the form that `merge` accepts.

        Args:
          clients: A range that begins with the first client of the state. Its other clients have been added.
          without: The clients of the range that have not been added, because they are to run again elsewhere.

        Returns:
          The partial results; `None`, with nothing removed, if they cannot be separated from the others now.
        """
        return None

    @abc.abstractmethod
    def merge(self, partials: object) -> None:
        """Adds the partial results of another range of clients.

        Call this method in client order unless `merges_in_any_order` is true.
        """

    @abc.abstractmethod
    def result(self) -> object:
        """Returns the payload of the result over all clients."""

    def stream(self, start: int) -> "FoldStream":
        """Returns a stream that accepts the results of the clients from `start` on, one client at a time."""
        return FoldStream(self, start)


class FoldStream:
    """Adds the results of clients to a fold one by one, in client order.

    The results are complete only after `close`.

    Args:
      state: The state of the fold.
      start: The index of the first client.
    """

    def __init__(self, state: FoldState, start: int) -> None:
        self._state = state
        self._start = start
        self._next: int = start

    def add(self, results: list[object]) -> None:
        """Adds the results of the next client.

        Args:
          results: One payload per operand of the aggregation. The stream may change the list.
        """
        self._state.feed(self._next, [ListColumn([operand]) for operand in results])
        self._next += 1

    def close(self) -> None:
        """Adds the remaining results of the stream to the fold."""


def as_payload(array: np.ndarray) -> object:
    """Returns the payload of an array that the caller owns: a scalar or a read-only view."""
    return array[()] if array.ndim == 0 else read_only(array)


class TreeState(FoldState):
    """The state of a sum, minimum or maximum of structs of tensors.

    Attributes:
      fold: The aggregation.
      leaves: The fold of each tensor.
      weights: The fold of the clients' weights; `None` for an aggregation without weights.
    """

    def __init__(self, fold: Fold, operation: np.ufunc, empty: Callable[[TensorType], object]) -> None:
        self.fold = fold
        self.weights: LeafFold | None = None
        self.leaves = [
            LeafFold(operation, tensor, path, self._dtype(tensor)) for path, tensor in tensor_leaves(fold.member)
        ]
        self._empty = empty

    @property
    def merges_in_any_order(self) -> bool:
        # If the shape is not fully defined, the error must name the first client whose shape differs from those of
        # earlier clients, which requires client order.
        return not any(leaf.open_shape for leaf in self.leaves)

    def _dtype(self, tensor: TensorType) -> np.dtype:
        """Returns the dtype in which the fold of a tensor is computed."""
        return tensor.dtype

    def feed(self, start: int, columns: Sequence[Column]) -> None:
        quiet_context().run(self._feed, start, columns)
        self.add_clients(len(columns[0]))

    def _feed(self, start: int, columns: Sequence[Column]) -> None:
        weights = self.add_weights(start, columns[1].items()) if self.weights is not None else None
        for leaf, column in zip(self.leaves, leaf_columns(columns[0], self.fold.member)):
            leaf.feed(start, column, weights, self.fold.reads_alone)

    def add_weights(self, start: int, weights: Sequence[object]) -> np.ndarray:
        """Adds the weights of the clients from `start` on, and returns them."""
        fold = cast(LeafFold, self.weights)
        column = ScalarColumn(np.array(weights, fold.tensor.dtype))
        fold.feed(start, column)
        return column.values

    def add_clients(self, clients: int) -> None:
        """Counts `clients` further clients if the result of the aggregation depends on the number of clients."""

    def skip(self, clients: range) -> None:
        for leaf in self.leaves if self.weights is None else [self.weights, *self.leaves]:
            leaf.skip(clients)

    def stream(self, start: int) -> FoldStream:
        return TreeStream(self, start)

    def partials(self) -> object:
        return [leaf.partials() for leaf in self.leaves]

    def take(self, clients: range, without: Set[int] = frozenset()) -> object | None:
        return _taken(self.leaves, clients, without)

    def merge(self, partials: object) -> None:
        with np.errstate(all="ignore"):
            for leaf, theirs in zip(self.leaves, cast("list[list[Partial]]", partials)):
                leaf.merge(theirs)

    def result(self) -> object:
        return quiet_context().run(self._total)

    def _total(self) -> object:
        totals = self._finish([leaf.result() for leaf in self.leaves])
        empty_or_total = [
            self._empty(leaf.tensor) if total is None else as_payload(total) for leaf, total in zip(self.leaves, totals)
        ]
        return unflatten(iter(empty_or_total), self.fold.member)

    def _finish(self, totals: list[np.ndarray | None]) -> list[np.ndarray | None]:
        """Returns the result of each tensor, given its total; `None` without clients. May overwrite the totals."""
        return totals


def _taken(folds: Sequence[LeafFold], clients: range, without: Set[int]) -> list[list[Partial]] | None:
    """Removes and returns the partial results of a range of clients from all folds, or returns `None`; see `take`."""
    taken: list[list[Partial]] = []
    for fold in folds:
        found = fold.take(clients, without)
        if found is None:
            with np.errstate(all="ignore"):
                for each, partials in zip(folds, taken):
                    each.add(partials)
            return None
        taken.append(found)
    return taken


class TreeStream(FoldStream):
    """Folds large tensors while they are in the cache, and small tensors as a column at the end."""

    def __init__(self, state: TreeState, start: int) -> None:
        super().__init__(state, start)
        self._tree = state
        self._flatten = flattener(state.fold.member)
        self._leaves = [LeafStream(leaf, start, state.fold.reads_alone) for leaf in state.leaves]
        self._weights: list[object] = []
        self._quiet = quiet_context()

    def add(self, results: list[object]) -> None:
        weight: object = None
        if self._tree.weights is not None:
            weight = results.pop()
            self._weights.append(weight)
        self._quiet.run(self._add, results, weight)
        self._next += 1

    def _add(self, operands: list[object], weight: object) -> None:
        tensors = self._flatten(operands.pop())
        for index, leaf in enumerate(self._leaves):
            leaf.add(tensors, index, weight)

    def close(self) -> None:
        self._quiet.run(self._close)

    def _close(self) -> None:
        weights = None if self._tree.weights is None else self._tree.add_weights(self._start, self._weights)
        for leaf in self._leaves:
            leaf.close(weights)
        self._tree.add_clients(self._next - self._start)


class MeanState(TreeState):
    """The state of a mean, with or without weights: the sum of the products divided by the sum of the weights.

    Half-precision values are summed in float32 and rounded once. Integer weights are summed as float64, which cannot
    wrap around.
    """

    def __init__(self, fold: Fold) -> None:
        super().__init__(fold, np.add, nan_of)
        self.count = 0
        self._absent: set[int] = set()
        self._lock = threading.Lock()
        if fold.weight is not None:
            weight = cast(TensorType, fold.weight)
            self.weights = LeafFold(np.add, weight, "", _wide_weight(weight.dtype))

    def _dtype(self, tensor: TensorType) -> np.dtype:
        return _product_dtype(tensor.dtype, self.fold.weight)

    def add_clients(self, clients: int) -> None:
        with self._lock:
            self.count += clients

    def skip(self, clients: range) -> None:
        with self._lock:
            self._absent.update(clients)
        super().skip(clients)

    def partials(self) -> object:
        weights = self.weights.partials() if self.weights is not None else None
        return self.count, weights, super().partials()

    def take(self, clients: range, without: Set[int] = frozenset()) -> object | None:
        folds = self.leaves if self.weights is None else [self.weights, *self.leaves]
        taken = _taken(folds, clients, without)
        if taken is None:
            return None
        with self._lock:
            # The absent clients stay known, because what has been taken may be merged again.
            present = len(clients) - len(without) - sum(client in clients for client in self._absent)
            self.count -= present
        weights = None if self.weights is None else taken.pop(0)
        return present, weights, taken

    def merge(self, partials: object) -> None:
        count, weights, leaves = cast("tuple[int, list[Partial], object]", partials)
        self.add_clients(count)
        if self.weights is not None:
            with np.errstate(all="ignore"):
                self.weights.add(weights)
        super().merge(leaves)

    def _finish(self, totals: list[np.ndarray | None]) -> list[np.ndarray | None]:
        weight = self.count if self.weights is None else self.weights.result()
        return [
            None if total is None or weight is None else divide_total(total, weight, leaf.tensor.dtype)
            for leaf, total in zip(self.leaves, totals)
        ]


def divide_total(total: np.ndarray, weight: "int | np.ndarray", dtype: np.dtype) -> np.ndarray:
    """Returns a sum divided by a weight, computed in place if the dtype allows; NaN if the weight is zero."""
    factor = total.dtype.type(weight) if isinstance(weight, int) else weight.astype(total.dtype)
    if total.ndim:
        np.divide(total, factor, total)
        quotient = total
    else:
        quotient = np.asarray(np.divide(total, factor))
    if not weight:
        quotient = np.full(total.shape, np.nan, total.dtype)
    return quotient.astype(dtype, copy=False)


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _product_dtype(dtype: np.dtype, weight: Type | None) -> np.dtype:
    """Returns the dtype of a value multiplied by its weight, which preserves the range and precision of both."""
    if not isinstance(weight, TensorType) or kind_of_dtype(weight.dtype) != "f":
        return _wide(dtype)
    return np.result_type(_wide(dtype), _wide(weight.dtype))


def _wide_weight(dtype: np.dtype) -> np.dtype:
    # float64 is exact for sums up to 2^53 and cannot wrap around.
    return np.dtype(np.float64) if dtype.kind in "iu" else _wide(dtype)


def nan_of(tensor: TensorType) -> object:
    """Returns the mean over zero clients, which is NaN."""
    return extreme_of(tensor, lambda _: np.nan)


def zero_of(tensor: TensorType) -> object:
    """Returns the sum over zero clients, which is 0."""
    return extreme_of(tensor, lambda _: 0)


def largest_of(tensor: TensorType) -> object:
    """Returns the minimum over zero clients, which is the largest finite value of the dtype."""
    return extreme_of(tensor, lambda info: info.max)


def lowest_of(tensor: TensorType) -> object:
    """Returns the maximum over zero clients, which is the lowest finite value of the dtype."""
    return extreme_of(tensor, lambda info: info.min)


def extreme_of(tensor: TensorType, value: Callable[[np.iinfo | np.finfo], object]) -> object:
    """Returns a tensor filled with a single value. Unknown dimensions have size 0.

    Args:
      tensor: The type of the tensor.
      value: A function that returns the value, given the limits of the dtype.
    """
    info = np.iinfo(tensor.dtype) if kind_of_dtype(tensor.dtype) == "i" else float_limits(tensor.dtype)
    shape = tuple(size or 0 for size in tensor.shape or ())
    return as_payload(full_array(tensor, shape, value(info)))
