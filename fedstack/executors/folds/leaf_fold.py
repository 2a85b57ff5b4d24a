"""Folds one tensor of what clients yield: a column at a time, or client by client."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.columns import (
    Column,
    ConstantColumn,
    ListColumn,
    ScalarColumn,
    column_from_payloads,
)
from fedstack.computations.values.ownership import take_buffer
from fedstack.errors import TypeMismatchError
from fedstack.executors.folds.tree_fold import BlockFold, Partial, TreeFold, fold_rows

# Arrays up to this size are folded many at a time: a call per array costs more than a copy of it.
_STACKED_BYTES = 4096
# They are stacked in a buffer of at most this size: fresh memory for each level costs more than the additions.
_STACK_BYTES = 256 * 1024
_MOST_ROWS = 4096
# What is smaller waits for the end of a stream: the code that folds it would have to come from memory each time.
_STREAMED_BYTES = 16 * 1024


def leaf_columns(column: Column, member: Type) -> list[Column]:
    """Lists the columns of the tensors in a column of nested structs."""
    if isinstance(member, TensorType):
        return [column]
    fields = fields_of(cast(StructType, member))
    return [leaf for i, (_, t) in enumerate(fields) for leaf in leaf_columns(column.field(i), t)]


class LeafFold:
    """The tree fold of one tensor, in the dtype that the aggregation computes in.

    Attributes:
      tree: Has the partial folds.
      tensor: The type of what clients yield.
      path: Where in that of the aggregation it is.
      dtype: What is computed in.
      partial_type: The type of partial folds.
      open_shape: Whether the type leaves open how long the tensor is.
    """

    def __init__(self, operation: np.ufunc, tensor: TensorType, path: str, dtype: np.dtype | None = None) -> None:
        self.tree = TreeFold(operation)
        self.tensor = tensor
        self.path = path
        self.dtype = tensor.dtype if dtype is None else dtype
        self.partial_type = tensor if self.dtype == tensor.dtype else TensorType(self.dtype, tensor.shape)
        self.open_shape = tensor.shape is None or None in tensor.shape
        self._shape: tuple[int, ...] | None = None

    def feed(self, start: int, column: Column, weights: np.ndarray | None = None, alone: bool = False) -> None:
        """Takes in one tensor per client, each times its weight if there are weights.

        If nobody else reads the column (`alone`), arrays that nobody else refers to become buffers of the fold.
        """
        if isinstance(column, ConstantColumn) and np.ndim(cast(np.ndarray, column.value)) == 0:
            column = ScalarColumn(np.full(len(column), column.value, self.tensor.dtype))
        factors = None if weights is None else weights.astype(self.dtype)
        if isinstance(column, ScalarColumn):
            values = column.values.astype(self.dtype, copy=False)
            self.tree.add(fold_rows(self.tree.operation, values if factors is None else values * factors, start))
            return
        arrays = cast("Sequence[np.ndarray]", column.items())
        if len(arrays) and arrays[0].ndim > 0 and arrays[0].nbytes <= _STACKED_BYTES:
            self._feed_stacked(start, arrays, factors)
            return
        stream = LeafStream(self, start, alone and isinstance(column, ListColumn) and column.list_is_own, waits=False)
        for index in range(len(arrays)):
            stream.add(arrays, index, None if factors is None else factors[index])
        stream.close()

    def _feed_stacked(self, start: int, arrays: Sequence[np.ndarray], factors: np.ndarray | None) -> None:
        if self.open_shape:
            for client, array in enumerate(arrays, start):
                self.check_shape(array.shape, client)
        first, done = arrays[0], 0
        at_once = min(_MOST_ROWS, 1 << (_STACK_BYTES // max(first.size * self.dtype.itemsize, 1)).bit_length() - 1)
        stack = np.empty((min(at_once, len(arrays)), *first.shape), self.dtype)
        while done < len(arrays):
            stop = min(((start + done) // at_once + 1) * at_once - start, len(arrays))
            rows = stack[: stop - done]
            np.concatenate(arrays[done:stop], out=rows.reshape(len(rows) * len(first), *first.shape[1:]))
            if factors is not None:
                np.multiply(rows, factors[done:stop].reshape(-1, *[1] * first.ndim), out=rows)
            self.tree.add(fold_rows(self.tree.operation, rows, start + done, in_place=True))
            done = stop

    def merge(self, partials: Sequence[Partial]) -> None:
        """Takes in the folds of blocks of clients."""
        if self.open_shape:
            for partial in partials:
                self.check_shape(np.shape(partial.value), partial.position << partial.level)
        self.tree.add(partials)

    def check_shape(self, shape: tuple[int, ...], client: int) -> None:
        """Checks that a client's tensor has the shape of the others.

        Raises:
          TypeMismatchError: If it does not.
        """
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


class LeafStream:
    """Leads one tensor of consecutive clients into its fold, each while it is in the cache.

    Args:
      leaf: The fold.
      start: The index of the first client.
      alone: Whether nobody else reads the tensors; then those that nobody else refers to become buffers of the fold.
      waits: Whether tensors wait for the end; by default small ones do.
    """

    __slots__ = (
        "_add",
        "_alone",
        "_checks_shape",
        "_fold",
        "_leaf",
        "_next",
        "_start",
        "_waiting",
        "_waits",
        "_widens",
    )

    def __init__(self, leaf: LeafFold, start: int, alone: bool, waits: bool | None = None) -> None:
        self._leaf = leaf
        self._start = self._next = start
        self._alone = alone
        self._waits = waits
        self._waiting: list[object] = []
        self._fold = BlockFold(leaf.tree.operation, start, leaf.tree.spare)
        self._add = self._fold.add
        self._checks_shape = leaf.open_shape
        self._widens = leaf.dtype != leaf.tensor.dtype

    def add(self, tensors: Sequence[object], index: int, weight: object) -> None:
        """Takes in one of `tensors`, times its weight if there is one.

        Args:
          tensors: A list that is the stream's own, if it may take buffers out of it.
          index: Which of them is the next client's.
          weight: The client's weight, a NumPy scalar; `None` without weights.
        """
        if self._waits is None:
            self._waits = cast(np.ndarray, tensors[index]).nbytes < _STREAMED_BYTES
        if self._waits:
            self._waiting.append(tensors[index])
            return
        if self._checks_shape:
            self._leaf.check_shape(cast(np.ndarray, tensors[index]).shape, self._next)
            self._next += 1
        value = take_buffer(cast("list[object]", tensors), index) if self._alone else None
        owned = value is not None
        if value is None:
            value = cast(np.ndarray, tensors[index])
        if self._widens:
            value, owned = value.astype(self._leaf.dtype), True
        if weight is not None:
            value, owned = self._weighted(value, owned, cast(np.generic, weight)), True
        self._add(value, owned)

    def _weighted(self, value: np.ndarray, owned: bool, weight: np.generic) -> np.ndarray:
        """Returns the product in a buffer that the fold has just let go of: it is still in the cache."""
        leaf = self._leaf
        if weight.dtype is not leaf.dtype:
            weight = weight.astype(leaf.dtype)
        return np.multiply(value, weight, value if owned else leaf.tree.spare.take(value))

    def close(self, weights: np.ndarray | None = None) -> None:
        """Hands everything on to the fold; `weights` are those of the clients that have waited."""
        self._leaf.tree.add(self._fold.partials())
        if self._waiting:
            self._leaf.feed(self._start, column_from_payloads(self._waiting, self._leaf.tensor), weights)
