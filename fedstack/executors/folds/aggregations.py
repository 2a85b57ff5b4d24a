"""Creates the fold state of each aggregation, and defines the state of secure sums.

A secure sum checks that each value is within the bound that the secure protocol requires. The state of a general
aggregation is in `aggregate_state.py`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fedstack.computations.plan.tasks import Fold, Phase
from fedstack.computations.types.type_structure import flatten, tensor_leaves
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidValueError, UnsupportedIntrinsicError
from fedstack.executors.folds.fold_states import (
    FoldState,
    FoldStream,
    MeanState,
    TreeState,
    largest_of,
    lowest_of,
    zero_of,
)
from fedstack.executors.folds.leaf_fold import LeafFold, leaf_columns
from fedstack.foundations.caches import Made


class SecureSumState(TreeState):
    """The state of a secure sum, which checks each value against its bound before adding it."""

    def __init__(self, fold: Fold, bounds: Sequence[object]) -> None:
        super().__init__(fold, np.add, zero_of)
        self.bounds = bounds

    def stream(self, start: int) -> FoldStream:
        return FoldStream(self, start)

    def feed(self, start: int, columns: Sequence[Column]) -> None:
        self.check(start, columns)
        super().feed(start, columns)

    def check(self, start: int, columns: Sequence[Column]) -> None:
        for leaf, column, bound in zip(self.leaves, leaf_columns(columns[0], self.fold.member), self.bounds):
            self._check(start, column, bound, leaf)

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

    __slots__ = ("_bounds", "captures", "made", "values")

    def __init__(self, values: Sequence[object], captures: Sequence[Sequence[object]]) -> None:
        self.values = values
        self.captures = captures
        self.made: Made = {}
        self._bounds: list[int] | None = None

    def bounds(self, fold: Fold) -> list[int]:
        """Returns the largest value that a secure sum allows for each tensor; all clients have the same bounds."""
        if self._bounds is None:
            self._bounds = list(bounds_of(fold, self.values[0]))
        return self._bounds


FoldArguments = Sequence[FoldArgument]


def tree_state(fold: Fold, argument: FoldArgument) -> FoldState:
    """Returns an empty state for any fold except a general aggregation, which needs the user's functions."""
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
