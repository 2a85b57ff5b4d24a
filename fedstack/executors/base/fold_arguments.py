"""Defines the server's arguments of a phase's folds, and the states that they make."""

from collections.abc import Sequence

import numpy as np

from fedstack.computations.plan.tasks import Fold, Phase
from fedstack.computations.values.columns import Column
from fedstack.errors import UnsupportedIntrinsicError
from fedstack.executors.folds.fold_states import (
    FoldState,
    MeanState,
    TreeState,
    largest_of,
    lowest_of,
    zero_of,
)
from fedstack.executors.folds.secure_sum import SecureSumState, bounds_of


class FoldArgument:
    """The server's arguments of one fold.

    Attributes:
      values: The payloads of its arguments that are no functions: zero, or the bound of a secure sum.
      captures: For each of its functions, the payloads of what it captures.
    """

    __slots__ = ("_bounds", "captures", "values")

    def __init__(self, values: Sequence[object], captures: Sequence[Sequence[object]]) -> None:
        self.values = values
        self.captures = captures
        self._bounds: list[int] | None = None

    def bounds(self, fold: Fold) -> list[int]:
        """Returns the largest values that a secure sum allows, which are the same for all of its clients."""
        if self._bounds is None:
            self._bounds = list(bounds_of(fold, self.values[0]))
        return self._bounds


FoldArguments = Sequence[FoldArgument]


def tree_state(fold: Fold, argument: FoldArgument) -> FoldState:
    """Returns an empty state for a fold along the fixed tree, which needs no functions: any but the general one."""
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
    """Returns what tells the form of the partial results of a phase's folds; `None` for a general aggregation."""
    return [
        None if fold.uri == "federated_aggregate" else tree_state(fold, argument)
        for fold, argument in zip(phase.folds, arguments)
    ]


def slice_inputs(inputs: Sequence[object], start: int, stop: int) -> list[object]:
    """Cuts the columns among a phase's inputs."""
    return [value.slice(start, stop) if isinstance(value, Column) else value for value in inputs]


def inputs_are_here(inputs: Sequence[object]) -> bool:
    """Returns whether nothing has to be waited for to read the columns among a phase's inputs."""
    return all(value.is_here for value in inputs if isinstance(value, Column))


def inputs_here(inputs: Sequence[object]) -> list[object]:
    """Reads the columns among a phase's inputs."""
    return [value.here() if isinstance(value, Column) else value for value in inputs]
