"""Turns what clients yield into the result of an aggregation: sums, means, extremes, secure sums.

A state takes blocks of clients in any order and from several threads, and folds along the fixed tree of `tree_fold`.
The one that does not, the general aggregation, is in `aggregate_state.py`.
"""

import abc
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, cast

import numpy as np

from fedstack.computations.plan.tasks import Fold
from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, flatten, full_array, tensor_leaves, unflatten
from fedstack.computations.values.arrays import float_limits
from fedstack.computations.values.columns import Column, ConstantColumn, ListColumn, ScalarColumn
from fedstack.computations.values.ownership import take_buffer
from fedstack.computations.values.tensor_values import kind_of_dtype, read_only
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.executors.folds.tree_fold import (
    SMALL_BYTES,
    Partial,
    TreeFold,
    fold_arrays,
    fold_small_arrays,
    fold_vector,
)

# Arrays of consecutive clients, and whether each may be written into.
Rows: TypeAlias = Iterator[tuple[np.ndarray, bool]]


class FoldState(abc.ABC):
    """The state of one aggregation over a range of clients."""

    @abc.abstractmethod
    def feed(self, start: int, columns: Sequence[Column]) -> None:
        """Takes in what the clients from `start` on yielded: one column per operand of the aggregation."""

    @abc.abstractmethod
    def partials(self) -> object:
        """Returns what another state of the same aggregation can take in with `merge`."""

    @abc.abstractmethod
    def merge(self, partials: object) -> None:
        """Takes in the partials of another range of clients; ranges are merged in client order."""

    @abc.abstractmethod
    def result(self) -> object:
        """Returns the payload of the result over all clients."""


def leaf_columns(column: Column, member: Type) -> list[Column]:
    """Lists the columns of the tensors in a column of nested structs."""
    if isinstance(member, TensorType):
        return [column]
    fields = fields_of(cast(StructType, member))
    return [leaf for i, (_, t) in enumerate(fields) for leaf in leaf_columns(column.field(i), t)]


def _take_over(payloads: list[object]) -> Rows:
    """Yields arrays out of a list that nobody else reads: those that nobody else refers to as buffers."""
    for index in range(len(payloads)):
        buffer = take_buffer(payloads, index)
        yield (cast(np.ndarray, payloads[index]), False) if buffer is None else (buffer, True)


class LeafFold:
    """The tree fold of one tensor, in the dtype that the aggregation computes in."""

    def __init__(self, operation: np.ufunc, tensor: TensorType, path: str, dtype: np.dtype | None = None) -> None:
        self.tree = TreeFold(operation)
        self.tensor = tensor
        self.path = path
        self.dtype = tensor.dtype if dtype is None else dtype
        self.open_shape = tensor.shape is None or None in tensor.shape
        self._shape: tuple[int, ...] | None = None

    def feed(self, start: int, column: Column, weights: np.ndarray | None = None, alone: bool = False) -> None:
        """Takes in one tensor per client, each times its weight if there are weights.

        If nobody else reads the column (`alone`), arrays that nobody else refers to become buffers of the fold.
        """
        if isinstance(column, ScalarColumn):
            values = column.values.astype(self.dtype, copy=False)
            if weights is not None:
                values = values * weights.astype(self.dtype)
            self.tree.add(fold_vector(self.tree.operation, values, start))
            return
        if isinstance(column, ConstantColumn) and np.ndim(cast(np.ndarray, column.value)) == 0:
            self.feed(start, ScalarColumn(np.full(len(column), column.value, self.tensor.dtype)), weights)
            return
        arrays = cast("Sequence[np.ndarray]", column.items())
        if self.open_shape:
            for client, array in enumerate(arrays, start):
                self.check_shape(array.shape, client)
        if len(arrays) and arrays[0].ndim > 0 and arrays[0].nbytes <= SMALL_BYTES:
            factors = None if weights is None else weights.astype(self.dtype)
            for partials in fold_small_arrays(self.tree.operation, arrays, start, self.dtype, factors):
                self.tree.add(partials)
            return
        if alone and isinstance(column, ListColumn) and column.list_is_own:
            rows = _take_over(cast("list[object]", column.values))
        else:
            rows = ((array, False) for array in arrays)
        if self.dtype != self.tensor.dtype:
            rows = ((array.astype(self.dtype), True) for array, _ in rows)
        if weights is not None:
            rows = self._weighted(rows, weights.astype(self.dtype))
        self.tree.add(fold_arrays(self.tree.operation, rows, start, self.tree.spare))

    def _weighted(self, rows: "Rows", factors: np.ndarray) -> "Rows":
        """Yields one product at a time, in a buffer that the fold has just let go of: it is still in the cache."""
        for (array, owned), factor in zip(rows, factors):
            yield np.multiply(array, factor, array if owned else self.tree.spare.take(array)), True

    def merge(self, partials: Sequence[Partial]) -> None:
        """Takes in the folds of blocks of clients."""
        if self.open_shape:
            for partial in partials:
                self.check_shape(np.shape(partial.value), partial.position << partial.level)
        self.tree.add(partials)

    def check_shape(self, shape: tuple[int, ...], client: int) -> None:
        self._shape = shape if self._shape is None else self._shape
        if shape != self._shape:
            where = f"; at client {client}{', value' + self.path if self.path else ''}"
            raise TypeMismatchError(
                f"Expected the same shape from every client, found {list(shape)} and {list(self._shape)}"
                f"{where}; an aggregation cannot combine tensors of different shapes"
            )

    def total(self) -> np.ndarray | None:
        """Returns the fold over all clients, an array of its own; `None` without clients."""
        total = self.tree.result()
        return None if total is None else np.asarray(total)


def as_payload(array: np.ndarray) -> object:
    """Returns the payload of an array that we made: a scalar or a read-only view of it."""
    return array[()] if array.ndim == 0 else read_only(array)


class TreeState(FoldState):
    """A sum, minimum or maximum of structs of tensors."""

    def __init__(self, fold: Fold, operation: np.ufunc, empty: Callable[[TensorType], object]) -> None:
        self.fold = fold
        self._empty = empty
        self.leaves = [LeafFold(operation, tensor, path) for path, tensor in tensor_leaves(fold.member)]

    def feed(self, start: int, columns: Sequence[Column]) -> None:
        with np.errstate(all="ignore"):
            for leaf, column in zip(self.leaves, leaf_columns(columns[0], self.fold.member)):
                leaf.feed(start, column, alone=self.fold.reads_alone)

    def partials(self) -> object:
        return [leaf.tree.partials() for leaf in self.leaves]

    def merge(self, partials: object) -> None:
        with np.errstate(all="ignore"):
            for leaf, theirs in zip(self.leaves, cast("list[list[Partial]]", partials)):
                leaf.merge(theirs)

    def result(self) -> object:
        with np.errstate(all="ignore"):
            return unflatten(iter([self._leaf_result(leaf) for leaf in self.leaves]), self.fold.member)

    def _leaf_result(self, leaf: LeafFold) -> object:
        total = leaf.total()
        return self._empty(leaf.tensor) if total is None else as_payload(total)


class MeanState(FoldState):
    """A mean, weighted or not: the sum of the products over the sum of the weights.

    Half-precision values are summed in float32 and rounded once. Integer weights are summed as float64, which cannot
    wrap.
    """

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.count = 0
        self._lock = threading.Lock()
        self.leaves = [
            LeafFold(np.add, tensor, path, _product_dtype(tensor.dtype, fold.weight))
            for path, tensor in tensor_leaves(fold.member)
        ]
        self.weights = None
        if fold.weight is not None:
            weight = cast(TensorType, fold.weight)
            self.weights = LeafFold(np.add, weight, "", _wide_weight(weight.dtype))

    def feed(self, start: int, columns: Sequence[Column]) -> None:
        weights = None
        if self.weights is not None:
            weights = np.array(columns[1].items(), cast(TensorType, self.fold.weight).dtype)
        with np.errstate(all="ignore"):
            if self.weights is not None and weights is not None:
                self.weights.feed(start, ScalarColumn(weights))
            for leaf, column in zip(self.leaves, leaf_columns(columns[0], self.fold.member)):
                leaf.feed(start, column, weights, self.fold.reads_alone)
        self.add_clients(len(columns[0]))

    def add_clients(self, clients: int) -> None:
        """Counts clients."""
        with self._lock:
            self.count += clients

    def partials(self) -> object:
        weights = self.weights.tree.partials() if self.weights is not None else None
        return self.count, weights, [leaf.tree.partials() for leaf in self.leaves]

    def merge(self, partials: object) -> None:
        count, weights, leaves = cast("tuple[int, list[Partial], list[list[Partial]]]", partials)
        self.count += count
        with np.errstate(all="ignore"):
            if self.weights is not None:
                self.weights.tree.add(weights)
            for leaf, theirs in zip(self.leaves, leaves):
                leaf.merge(theirs)

    def result(self) -> object:
        total_weight: object = self.count
        if self.weights is not None:
            total_weight = self.weights.total()
        with np.errstate(all="ignore"):
            return unflatten(iter([self._leaf_result(leaf, total_weight) for leaf in self.leaves]), self.fold.member)

    def _leaf_result(self, leaf: LeafFold, total_weight: object) -> object:
        total = leaf.total()
        if total is None or total_weight is None:
            shape = tuple(size or 0 for size in leaf.tensor.shape or ())
            return as_payload(full_array(leaf.tensor, shape, np.nan))
        return as_payload(divide_total(total, cast("int | np.ndarray", total_weight), leaf.tensor.dtype))


def divide_total(total: np.ndarray, weight: "int | np.ndarray", dtype: np.dtype) -> np.ndarray:
    """Divides a sum by a weight, in place where the dtype allows; a weight of zero gives NaN."""
    factor = np.asarray(weight).astype(total.dtype)
    if total.ndim:
        np.divide(total, factor, total)
        quotient = total
    else:
        quotient = np.asarray(np.divide(total, factor))
    if not np.any(np.asarray(weight)):
        quotient = np.full(total.shape, np.nan, total.dtype)
    return quotient.astype(dtype, copy=False)


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _product_dtype(dtype: np.dtype, weight: Type | None) -> np.dtype:
    """Returns the dtype of a value times its weight: a wide floating weight keeps its range and precision."""
    if not isinstance(weight, TensorType) or kind_of_dtype(weight.dtype) != "f":
        return _wide(dtype)
    return np.result_type(_wide(dtype), _wide(weight.dtype))


def _wide_weight(dtype: np.dtype) -> np.dtype:
    # Exact for sums up to 2^53, and it cannot wrap.
    return np.dtype(np.float64) if dtype.kind in "iu" else _wide(dtype)


class SecureSumState(TreeState):
    """A sum that checks each value against its bound first, as the secure protocol requires."""

    def __init__(self, fold: Fold, bounds: Sequence[object]) -> None:
        super().__init__(fold, np.add, zero_of)
        self.bounds = bounds

    def feed(self, start: int, columns: Sequence[Column]) -> None:
        for leaf, column, bound in zip(self.leaves, leaf_columns(columns[0], self.fold.member), self.bounds):
            self._check(start, column, bound, leaf)
        super().feed(start, columns)

    def _check(self, start: int, column: Column, bound: object, leaf: LeafFold) -> None:
        for client, value in enumerate(column.items(), start):
            array = np.asarray(value).astype(object)
            if np.any(array < 0) or np.any(array > bound):
                worst = min(array.ravel().tolist()) if np.any(array < 0) else max(array.ravel().tolist())
                raise InvalidValueError(
                    f"Expected values from 0 to {bound} for {self.fold.uri}, found {worst}; at client {client}"
                    f"{', value' + leaf.path if leaf.path else ''}; clip the values or raise the bound"
                )


def zero_of(tensor: TensorType) -> object:
    """Returns the sum over no clients."""
    return extreme_of(tensor, lambda _: 0)


def largest_of(tensor: TensorType) -> object:
    """Returns the minimum over no clients: the largest finite value of the dtype."""
    return extreme_of(tensor, lambda info: info.max)


def lowest_of(tensor: TensorType) -> object:
    """Returns the maximum over no clients: the lowest finite value of the dtype."""
    return extreme_of(tensor, lambda info: info.min)


def extreme_of(tensor: TensorType, value: Callable[[np.iinfo | np.finfo], object]) -> object:
    """Returns a tensor full of one value; unknown dimensions are empty, since nobody has said their size."""
    info = np.iinfo(tensor.dtype) if kind_of_dtype(tensor.dtype) == "i" else float_limits(tensor.dtype)
    shape = tuple(size or 0 for size in tensor.shape or ())
    return as_payload(full_array(tensor, shape, value(info)))


def negative_bound(uri: str, name: str, value: int, advice: str) -> InvalidValueError:
    """Returns the error for a bound that allows nothing, which is no client's fault."""
    return InvalidValueError(f"Expected {name} to be 0 or more, found the negative bound {value}; in {uri}; {advice}")


def bounds_of(fold: Fold, bound: object) -> Iterator[int]:
    """Yields the largest value that a secure sum allows, for each tensor of its member type.

    Raises:
      InvalidValueError: If a bound is negative, or a number of bits not from 0 to 62.
    """
    given = flatten(bound, fold.server_types[0])
    leaves = sum(1 for _ in tensor_leaves(fold.member))
    values = [int(np.max(np.asarray(value))) for value in given] * (leaves if len(given) == 1 else 1)
    for value in values[:leaves]:
        if fold.uri == "federated_secure_sum":
            if value < 0:
                raise negative_bound(fold.uri, "max_input", value, "give the largest value that a client may have")
            yield value
            continue
        if not 0 <= value <= 62:
            raise InvalidValueError(f"Expected a bitwidth from 0 to 62, found {value}; in {fold.uri}")
        yield (1 << value) - 1
