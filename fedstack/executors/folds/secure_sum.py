"""Sums as the secure protocol reveals them: of values within bounds that every client must keep."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedstack.computations.plan.tasks import Fold
from fedstack.computations.types.type_structure import flatten, tensor_leaves
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidValueError
from fedstack.executors.folds.fold_states import FoldStream, TreeState, zero_of
from fedstack.executors.folds.leaf_fold import LeafFold, leaf_columns


class SecureSumState(TreeState):
    """A sum that checks each value against its bound first, as the secure protocol requires."""

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
                    f"Expected values from 0 to {bound} for {self.fold.uri}, found {worst}; at client {client}"
                    f"{', value' + leaf.path if leaf.path else ''}; clip the values or raise the bound"
                )


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
