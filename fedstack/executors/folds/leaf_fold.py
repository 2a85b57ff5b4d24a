"""Folds one tensor of an aggregation over clients, with the fastest traversal of the tree for the tensor's size.

A `LeafFold` is the tree fold of one tensor. Scalars and small arrays are folded level by level. Large arrays are added
one by one (`LeafStream`), while each is still in the cache.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.columns import (
    Column,
    ConstantColumn,
    ListColumn,
    RowsColumn,
    ScalarColumn,
    column_from_payloads,
)
from fedstack.computations.values.ownership import take_buffer
from fedstack.errors import TypeMismatchError
from fedstack.executors.folds.tree_fold import BlockFold, Partial, TreeFold, fold_rows

# Arrays up to this size are stacked and folded together, because a call per array costs more than a copy.
_STACKED_BYTES = 4096
# The maximum size of the buffer for stacked arrays. Fresh memory for each level would cost more than the additions.
_STACK_BYTES = 256 * 1024
_MOST_ROWS = 4096
# Smaller tensors are folded together at the end of a stream, so that the code of the fold is loaded only once.
_STREAMED_BYTES = 16 * 1024


def leaf_columns(column: Column, member: Type) -> list[Column]:
    """Returns the columns of the individual tensors in a column of nested structs."""
    if isinstance(member, TensorType):
        return [column]
    fields = fields_of(cast(StructType, member))
    return [leaf for i, (_, t) in enumerate(fields) for leaf in leaf_columns(column.field(i), t)]


class LeafFold(TreeFold):
    """The tree fold of one tensor of an aggregation.

    Attributes:
      tensor: The type of the clients' values.
      path: The path of the tensor in the member type of the aggregation.
      dtype: The dtype in which the fold is computed.
      partial_type: The type of partial results.
      open_shape: Whether the shape of `tensor` is not fully defined.
    """

    def __init__(self, operation: np.ufunc, tensor: TensorType, path: str, dtype: np.dtype | None = None) -> None:
        super().__init__(operation)
        self.tensor = tensor
        self.path = path
        self.dtype = tensor.dtype if dtype is None else dtype
        self.partial_type = tensor if self.dtype == tensor.dtype else TensorType(self.dtype, tensor.shape)
        self.open_shape = tensor.shape is None or None in tensor.shape
        self._shape: tuple[int, ...] | None = None

    def feed(self, start: int, column: Column, weights: np.ndarray | None = None, alone: bool = False) -> None:
        """Adds one tensor per client, multiplied by its weight if there are weights.

        If the fold is the only reader of the column (`alone`), it reuses arrays without other references as buffers.
        """
        if isinstance(column, ConstantColumn) and np.ndim(cast(np.ndarray, column.value)) == 0:
            column = ScalarColumn(np.full(len(column), column.value, self.tensor.dtype))
        factors = None if weights is None else weights.astype(self.dtype)
        if isinstance(column, ScalarColumn):
            values = column.values.astype(self.dtype, copy=False)
            self.add(fold_rows(self.operation, values if factors is None else values * factors, start))
            return
        if isinstance(column, RowsColumn) and column.values[:1].nbytes <= _STACKED_BYTES and not self.open_shape:
            self._feed_rows(start, column.values, factors)
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
        first = arrays[0]
        if self.operation is np.add and factors is None and first.dtype == self.dtype:
            self._feed_pairs(start, arrays)
            return
        at_once = self._rows_at_once(first.size)
        stack = np.empty((min(at_once, len(arrays)), *first.shape), self.dtype)
        for done, stop in _parts(start, len(arrays), at_once):
            rows = stack[: stop - done]
            np.concatenate(arrays[done:stop], out=rows.reshape(len(rows) * len(first), *first.shape[1:]))
            if factors is not None:
                np.multiply(rows, factors[done:stop].reshape(-1, *[1] * first.ndim), out=rows)
            self.add(fold_rows(self.operation, rows, start + done, in_place=True))

    def _feed_pairs(self, start: int, arrays: Sequence[np.ndarray]) -> None:
        """Adds neighbours to each other, which takes less time than to copy both and then to add the copies."""
        first = start % 2
        count = (len(arrays) - first) // 2
        alone = [*range(first), *range(first + 2 * count, len(arrays))]
        self.add([Partial(0, start + index, np.copy(arrays[index]), True) for index in alone])
        position, at_once = (start + first) // 2, self._rows_at_once(arrays[0].size)
        stack = np.empty((min(at_once, count), *arrays[0].shape), self.dtype)
        rows = list(stack)
        for done, stop in _parts(position, count, at_once):
            low, high = first + 2 * done, first + 2 * stop
            deque(map(np.add, arrays[low:high:2], arrays[low + 1 : high : 2], rows), maxlen=0)
            self.add(fold_rows(np.add, stack[: stop - done], position + done, level=1, in_place=True))

    def _rows_at_once(self, size: int) -> int:
        return min(_MOST_ROWS, 1 << (_STACK_BYTES // max(size * self.dtype.itemsize, 1)).bit_length() - 1)

    def _feed_rows(self, start: int, rows: np.ndarray, factors: np.ndarray | None) -> None:
        """Adds arrays that are stacked already."""
        for done, stop in _parts(start, len(rows), self._rows_at_once(rows[:1].size)):
            some = rows[done:stop].astype(self.dtype, copy=False)
            if factors is not None:
                some = some * factors[done:stop].reshape(-1, *[1] * (rows.ndim - 1))
            self.add(_kept(fold_rows(self.operation, some, start + done)))

    def merge(self, partials: Sequence[Partial]) -> None:
        """Adds the partial results of blocks of clients that were folded elsewhere."""
        if self.open_shape:
            for partial in partials:
                if partial.value is None:
                    continue
                self.check_shape(np.shape(partial.value), partial.position << partial.level)
        self.add(partials)

    def check_shape(self, shape: tuple[int, ...], client: int) -> None:
        """Checks that a client's tensor has the same shape as the tensors of other clients.

        Raises:
          TypeMismatchError: If the shapes differ.
        """
        self._shape = shape if self._shape is None else self._shape
        if shape != self._shape:
            where = f"; at client {client}{', value' + self.path if self.path else ''}"
            raise TypeMismatchError(
                f"Expected the same shape from every client, found {list(shape)} and {list(self._shape)}"
                f"{where}; an aggregation cannot combine tensors of different shapes"
            )


def _parts(start: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of consecutive positions that multiples of `size` bound, counted from `start`."""
    done = 0
    while done < count:
        stop = min(((start + done) // size + 1) * size - start, count)
        yield done, stop
        done = stop


def _kept(partials: Sequence[Partial]) -> list[Partial]:
    """Returns partial results that keep no other rows in memory, and that the fold may overwrite."""
    return [Partial(one.level, one.position, np.copy(cast(np.ndarray, one.value)), True) for one in partials]


class LeafStream:
    """Adds tensors of consecutive clients to a fold one by one, while each is still in the cache.

    Args:
      leaf: The fold.
      start: The index of the first client.
      alone: Whether the stream is the only reader, so that the fold may reuse tensors that have no other references.
      waits: Whether tensors are collected and folded at the end. By default, only small tensors are collected.
    """

    def __init__(self, leaf: LeafFold, start: int, alone: bool, waits: bool | None = None) -> None:
        self._leaf = leaf
        self._start = self._next = start
        self._alone = alone
        self._waits = waits
        self._waiting: list[object] = []
        self._fold = BlockFold(leaf.operation, start, leaf.spare)
        self._add = self._fold.add
        self._checks_shape = leaf.open_shape
        self._widens = leaf.dtype != leaf.tensor.dtype

    def add(self, tensors: Sequence[object], index: int, weight: object) -> None:
        """Adds the tensor of the next client, multiplied by its weight if there is one.

        Args:
          tensors: The list that contains the tensor. A stream that is `alone` must be the only user of the list.
          index: The position of the tensor in the list.
          weight: The weight of the client, a NumPy scalar; `None` without weights.
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
        """Returns the weighted tensor, in a buffer that was just freed and is therefore still in the cache."""
        leaf = self._leaf
        if weight.dtype is not leaf.dtype:
            weight = weight.astype(leaf.dtype)
        return np.multiply(value, weight, value if owned else leaf.spare.take(value))

    def close(self, weights: np.ndarray | None = None) -> None:
        """Passes the remaining results on to the fold. `weights` are the weights of the collected tensors, if any."""
        self._leaf.add(self._fold.partials())
        if self._waiting:
            self._leaf.feed(self._start, column_from_payloads(self._waiting, self._leaf.tensor), weights)
