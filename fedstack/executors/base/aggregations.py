"""Creates the fold state of each aggregation, and defines the states of general aggregations and secure sums.

A general aggregation folds the clients' values with user functions, in client order. A secure sum checks that each
value is within the bound that the secure protocol requires.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedstack.computations.plan.tasks import Fold, Phase
from fedstack.computations.types.type_structure import flatten, tensor_leaves
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidValueError, UnsupportedIntrinsicError
from fedstack.executors.base.fold_states import (
    FoldState,
    FoldStream,
    MeanState,
    TreeState,
    largest_of,
    lowest_of,
    zero_of,
)
from fedstack.executors.base.leaf_fold import LeafFold, leaf_columns


class AggregateState(FoldState):
    """The state of a general aggregation, which folds the clients' values in order with `accumulate`.

    Blocks of clients may be fed in any order; each waits until all blocks before it have been folded. `merge` combines
    the results of different client ranges.

    Args:
      first_client: The index of the first client of the range.
      zero: The initial accumulator.
      accumulate: Takes an accumulator, a client's value, and the client's index for error messages, and returns a new
        accumulator.
      merge: Combines the accumulators of two client ranges.
    """

    def __init__(
        self,
        first_client: int,
        zero: object,
        accumulate: Callable[[object, object, int], object],
        merge: Callable[[object, object], object],
    ) -> None:
        self._next = first_client
        self._accumulator = zero
        self._accumulate = accumulate
        self._merge = merge
        self._waiting: dict[int, Column] = {}
        self._busy = False
        self._merged = False
        self._lock = threading.Lock()

    def feed(self, start: int, columns: Sequence[Column]) -> None:
        with self._lock:
            self._waiting[start] = columns[0]
            if self._busy:
                return  # the thread that is folding picks up this block
            self._busy = True
        try:
            while (block := self._take()) is not None:
                accumulator = self._accumulator
                for client, value in enumerate(block[1].items(), block[0]):
                    accumulator = self._accumulate(accumulator, value, client)
                self._accumulator = accumulator
        except BaseException:
            with self._lock:
                self._busy = False
            raise

    def _take(self) -> tuple[int, Column] | None:
        with self._lock:
            start = self._next
            column = self._waiting.pop(start, None)
            if column is None:
                self._busy = False
                return None
            self._next += len(column)
            return start, column

    def partials(self) -> object:
        return self._accumulator

    def merge(self, partials: object) -> None:
        # A composed stack folds each child from zero, so the first child's result must not be merged with another zero.
        self._accumulator = self._merge(self._accumulator, partials) if self._merged else partials
        self._merged = True

    def result(self) -> object:
        return self._accumulator


class SecureSumState(TreeState):
    """The state of a secure sum, which checks each value against its bound before adding it."""

    def __init__(self, fold: Fold, bounds: Sequence[object]) -> None:
        super().__init__(fold, np.add, zero_of)
        self.bounds = bounds

    def stream(self, start: int) -> FoldStream:
        return FoldStream(self, start)

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
                    f"Expected values from 0 to {bound} for {self.fold.uri}, found {worst} at client {client}"
                    f"{', value' + leaf.path if leaf.path else ''}; clip the values or raise the bound"
                )


def negative_bound(uri: str, name: str, value: int, advice: str) -> InvalidValueError:
    """Returns the error for a negative bound. It names no client, because a negative bound allows no value at all."""
    return InvalidValueError(f"Expected {name} of {uri} to be at least 0, found {value}; {advice}")


def bounds_of(fold: Fold, bound: object) -> Iterator[int]:
    """Yields the largest value that a secure sum allows, for each tensor of its member type.

    Raises:
      InvalidValueError: If a bound is negative, or a bit width is outside the range from 0 to 62.
    """
    given = flatten(bound, fold.server_types[0])
    leaves = sum(1 for _ in tensor_leaves(fold.member))
    values = [int(np.max(np.asarray(value))) for value in given] * (leaves if len(given) == 1 else 1)
    for value in values[:leaves]:
        if fold.uri == "federated_secure_sum":
            if value < 0:
                raise negative_bound(fold.uri, "max_input", value, "pass the largest value that a client may have")
            yield value
            continue
        if not 0 <= value <= 62:
            raise InvalidValueError(
                f"Expected a bitwidth from 0 to 62 for {fold.uri}, found {value}; pass a bitwidth within this range"
            )
        yield (1 << value) - 1


class FoldArgument:
    """The arguments that the server supplies for a fold.

    Attributes:
      values: The payloads of the arguments that are not functions: zero, or the bound of a secure sum.
      captures: For each function of the fold, the payloads of its captures.
    """

    __slots__ = ("_bounds", "captures", "values")

    def __init__(self, values: Sequence[object], captures: Sequence[Sequence[object]]) -> None:
        self.values = values
        self.captures = captures
        self._bounds: list[int] | None = None

    def bounds(self, fold: Fold) -> list[int]:
        """Returns the largest value that a secure sum allows for each tensor; all clients have the same bounds."""
        if self._bounds is None:
            self._bounds = list(bounds_of(fold, self.values[0]))
        return self._bounds


FoldArguments = Sequence[FoldArgument]


def tree_state(fold: Fold, argument: FoldArgument) -> FoldState:
    """Returns an empty state for any fold except a general aggregation, which does not follow the fixed tree."""
    if fold.uri in ("federated_mean", "federated_weighted_mean"):
        return MeanState(fold)
    if fold.uri == "federated_min":
        return TreeState(fold, np.minimum, largest_of)
    if fold.uri == "federated_max":
        return TreeState(fold, np.maximum, lowest_of)
    if fold.uri in ("federated_secure_sum", "federated_secure_sum_bitwidth"):
        return SecureSumState(fold, argument.bounds(fold))
    if fold.uri == "federated_sum":
        return TreeState(fold, np.add, zero_of)
    raise UnsupportedIntrinsicError(f"Expected an aggregation that is folded along the tree, found {fold.uri}")


def partial_states(phase: Phase, arguments: FoldArguments) -> list[FoldState | None]:
    """Returns an empty state for each fold of a phase, and `None` for each general aggregation.

    The states define the form of the partial results.
    """
    return [
        None if fold.uri == "federated_aggregate" else tree_state(fold, argument)
        for fold, argument in zip(phase.folds, arguments)
    ]


def slice_inputs(inputs: Sequence[object], start: int, stop: int) -> list[object]:
    """Returns the inputs of a phase with each column sliced from `start` to `stop`; other inputs are unchanged."""
    return [value.slice(start, stop) if isinstance(value, Column) else value for value in inputs]


def inputs_are_here(inputs: Sequence[object]) -> bool:
    """Returns whether every column in the inputs of a phase can be read without waiting."""
    return all(value.is_here for value in inputs if isinstance(value, Column))


def inputs_here(inputs: Sequence[object]) -> list[object]:
    """Returns the inputs of a phase with each column loaded into memory."""
    return [value.here() if isinstance(value, Column) else value for value in inputs]
