"""Leads what clients yield into folds one by one, each while it is in the cache: for large results.

Large arrays are folded along the tree at once. What is small waits for the end of a block of clients and goes in as a
column then, since the code that folds it would have to come from memory each time.
"""

import contextvars
from typing import cast

import numpy as np

from fedstack.computations.types.type_structure import flattener
from fedstack.computations.values.columns import ListColumn, ScalarColumn, column_from_payloads
from fedstack.computations.values.ownership import take_buffer
from fedstack.executors.folds.fold_states import FoldState, LeafFold, MeanState, SecureSumState, TreeState
from fedstack.executors.folds.tree_fold import BlockFold

_SMALL_BYTES = 16 * 1024


def open_stream(state: FoldState, start: int) -> "FoldStream":
    """Returns the stream that leads the clients from `start` on into a state."""
    if isinstance(state, MeanState):
        return MeanStream(state, start)
    if isinstance(state, TreeState) and not isinstance(state, SecureSumState):
        return TreeStream(state, start)
    return FoldStream(state, start)


class FoldStream:
    """Leads what clients yield into a fold, one by one in their order; what is not closed may get lost.

    Args:
      state: The state of the fold.
      start: The index of the first client.
    """

    def __init__(self, state: FoldState, start: int) -> None:
        self._state = state
        self._next = start

    def add(self, results: list[object]) -> None:
        """Takes in what the next client yielded: a payload per operand, in a list that is the stream's own."""
        self._state.feed(self._next, [ListColumn([operand]) for operand in results])
        self._next += 1

    def close(self) -> None:
        """Hands on what is still here."""


class TreeStream(FoldStream):
    """Folds large arrays along the tree while they are in the cache, and what is small in the end."""

    def __init__(self, state: "TreeState | MeanState", start: int) -> None:
        super().__init__(state, start)
        self._flatten = flattener(state.fold.member)
        self.start = start
        self.leaves = [LeafStream(leaf, start, state.fold.reads_alone) for leaf in state.leaves]
        # With overflows and the like ignored in it; leaf functions do not run there.
        self.quiet = contextvars.copy_context()
        self.quiet.run(np.seterr, all="ignore")

    def add(self, results: list[object]) -> None:
        self.quiet.run(self._add, results, None)

    def _add(self, operands: list[object], weight: object) -> None:
        tensors = self._flatten(operands.pop())
        for index, leaf in enumerate(self.leaves):
            leaf.add(tensors, index, weight)

    def close(self) -> None:
        self.quiet.run(self._close, None)

    def _close(self, weights: np.ndarray | None) -> None:
        for leaf in self.leaves:
            leaf.close(self.start, weights)


class MeanStream(TreeStream):
    """The same for a mean."""

    def __init__(self, state: MeanState, start: int) -> None:
        super().__init__(state, start)
        self._mean = state
        self._weights: list[object] = []
        self._clients = 0

    def add(self, results: list[object]) -> None:
        self._clients += 1
        weight: object = None
        if self._mean.weights is not None:
            weight = results.pop()
            self._weights.append(weight)
        self.quiet.run(self._add, results, weight)

    def close(self) -> None:
        self.quiet.run(self._close_mean)

    def _close_mean(self) -> None:
        weights = None
        if self._mean.weights is not None:
            weights = np.array(self._weights, self._mean.weights.tensor.dtype)
            self._mean.weights.feed(self.start, ScalarColumn(weights))
        self._close(weights)
        self._mean.add_clients(self._clients)


class LeafStream:
    """One tensor of a stream.

    Args:
      leaf: Its fold.
      start: The index of the first client.
      alone: Whether nobody else reads the tensors; then those that nobody else refers to become buffers of the fold.
    """

    __slots__ = ("_add", "_alone", "_checks_shape", "_leaf", "_next", "_tree", "_waiting", "_waits", "_widens")

    def __init__(self, leaf: LeafFold, start: int, alone: bool) -> None:
        self._leaf = leaf
        self._next = start
        self._alone = alone
        self._waiting: list[object] = []
        self._waits: bool | None = None
        self._tree = BlockFold(leaf.tree.operation, start, leaf.tree.spare)
        self._add = self._tree.add
        self._checks_shape = leaf.open_shape
        self._widens = leaf.dtype != leaf.tensor.dtype

    def add(self, tensors: list[object], index: int, weight: object) -> None:
        """Takes in one of the next client's tensors, out of a list that is ours, times its weight if there is one."""
        if self._waits is None:
            self._waits = cast(np.ndarray, tensors[index]).nbytes < _SMALL_BYTES
        if self._waits:
            self._waiting.append(tensors[index])
            return
        if self._checks_shape:
            self._leaf.check_shape(cast(np.ndarray, tensors[index]).shape, self._next)
            self._next += 1
        value = take_buffer(tensors, index) if self._alone else None
        owned = value is not None
        if value is None:
            value = cast(np.ndarray, tensors[index])
        if self._widens:
            value, owned = value.astype(self._leaf.dtype), True
        if weight is not None:
            value, owned = self._weighted(value, owned, cast(np.generic, weight)), True
        self._add(value, owned)

    def _weighted(self, value: np.ndarray, owned: bool, weight: np.generic) -> np.ndarray:
        leaf = self._leaf
        if weight.dtype is not leaf.dtype:
            weight = weight.astype(leaf.dtype)
        return np.multiply(value, weight, value if owned else leaf.tree.spare.take(value))

    def close(self, start: int, weights: np.ndarray | None) -> None:
        """Hands everything on to the fold."""
        self._leaf.tree.add(self._tree.partials())
        if self._waiting:
            self._leaf.feed(start, column_from_payloads(self._waiting, self._leaf.tensor), weights)
