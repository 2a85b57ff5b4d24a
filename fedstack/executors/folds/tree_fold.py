"""Folds arrays along one fixed tree, whatever the order in which they come and however many threads there are.

The tree is a binary counter over client indices. A node (level, position) stands for the clients from
position·2^level up to, not including, (position+1)·2^level. Two siblings are combined as soon as both are there, always
the left one with the right one; what remains in the end is combined from the smallest block up. So a float sum has the
same bits for every way of cutting the clients into slices, and its error grows with log n instead of n.

Three walks: `fold_rows` goes level by level over what is stacked, `BlockFold` client by client with a partial result
per level, and `TreeFold` puts together what these are left with.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

_MAX_SPARE = 8


class Partial(NamedTuple):
    """The fold of an aligned block of clients.

    Attributes:
      level: The block has 2^level clients.
      position: Its number among the blocks of that size.
      value: The fold, a NumPy scalar or array.
      owned: Whether the array is ours to write into.
    """

    level: int
    position: int
    value: np.ndarray
    owned: bool


class SpareBuffers:
    """Buffers of one shape and dtype that are no longer needed; several threads may use them.

    To use one again costs less than fresh pages. Nothing is kept before somebody has asked for a buffer: where leaf
    functions bring their own, those that are done with go back to the allocator, from which leaf functions get theirs.

    Args:
      free: Buffers to begin with, in a list that is used from its end. All of them come back to it.
    """

    def __init__(self, free: list[np.ndarray] | None = None) -> None:
        self._free = [] if free is None else free
        self._wanted = bool(free)
        self._most = max(_MAX_SPARE, len(self._free))

    def take(self, like: np.ndarray) -> np.ndarray:
        """Returns a buffer for the result of an operation on an array like `like`."""
        self._wanted = True
        try:
            return self._free.pop()
        except IndexError:  # another thread may have been quicker, so there is no looking first
            return np.empty(like.shape, like.dtype)

    def put(self, buffer: np.ndarray) -> None:
        """Takes in a buffer that nobody reads any more: another thread may write into it at once."""
        if self._wanted and len(self._free) < self._most:
            self._free.append(buffer)


class TreeFold:
    """The fold of one tensor over clients. `add` may be called from several threads."""

    def __init__(self, operation: np.ufunc) -> None:
        self.operation = operation
        self.spare = SpareBuffers()
        self._partials: dict[tuple[int, int], Partial] = {}
        self._lock = threading.Lock()

    def add(self, partials: Sequence[Partial]) -> None:
        """Takes in the folds of some blocks."""
        for partial in partials:
            while (other := self._take_sibling(partial)) is not None:
                partial = self._combine(other, partial) if partial.position & 1 else self._combine(partial, other)

    def _take_sibling(self, partial: Partial) -> Partial | None:
        """Takes out the sibling of a partial; where there is none, puts the partial in."""
        with self._lock:
            other = self._partials.pop((partial.level, partial.position ^ 1), None)
            if other is None:
                self._partials[partial.level, partial.position] = partial
        return other

    def partials(self) -> list[Partial]:
        """Returns what there is, from the first client to the last."""
        with self._lock:
            return sorted(self._partials.values(), key=lambda p: p.position << p.level)

    def result(self) -> np.ndarray | None:
        """Combines what remains, from the smallest block up; `None` if there were no clients.

        The result is an array that nobody else has. This uses the partial results up: it is to be called once.
        """
        remaining = self.partials()
        if not remaining:
            return None
        total = remaining.pop()
        while remaining:
            total = self._combine(remaining.pop(), total)
        return total.value if total.owned else np.array(total.value)

    def _combine(self, left: Partial, right: Partial) -> Partial:
        value = combine(self.operation, left.value, left.owned, right.value, right.owned, self.spare)
        return Partial(left.level + 1, left.position >> 1, value, True)


def combine(
    operation: np.ufunc, left: np.ndarray, left_owned: bool, right: np.ndarray, right_owned: bool, spare: SpareBuffers
) -> np.ndarray:
    """Combines the folds of two neighbouring blocks, in place where one of them is ours.

    Of two that are ours the right one takes the result: as a rule it is the newer one and in the cache still, and the
    memory that becomes free has an older neighbour above it, so that the allocator does not hand it back to the system
    at once.
    """
    if not left.ndim:
        return operation(left, right)
    if not right_owned:
        return operation(left, right, out=left if left_owned else spare.take(left))
    operation(left, right, out=right)
    if left_owned:
        spare.put(left)
    return right


def fold_rows(operation: np.ufunc, values: np.ndarray, start: int, *, in_place: bool = False) -> list[Partial]:
    """Folds scalars, or small arrays that are stacked, level by level.

    Args:
      operation: The associative operation.
      values: What consecutive clients have, shape [clients, ...].
      start: The index of the first client.
      in_place: Whether to write into `values`, which are arrays then; the folds do not refer to it in the end.

    Returns:
      The folds of the aligned blocks that the clients make up; at most two per level.
    """
    partials: list[Partial] = []
    level = 0
    while size := len(values):
        if start & 1:
            partials.append(Partial(level, start, values[0], False))
            values = values[1:]
            start, size = start + 1, size - 1
        if size & 1:
            partials.append(Partial(level, start + size - 1, values[-1], False))
            values = values[:-1]
        if size > 1:
            left = values[0::2]
            values = operation(left, values[1::2], out=left if in_place else None)
        start >>= 1
        level += 1
    if in_place:
        return [Partial(one.level, one.position, one.value.copy(), True) for one in partials]
    return partials


def aligned_blocks(clients: range) -> Iterator[tuple[int, int]]:
    """Yields the level and the position of the fewest blocks of the tree that consecutive clients make up, in order."""
    start = clients.start
    while start < clients.stop:
        level = (clients.stop - start).bit_length() - 1  # the largest block that ends in time
        if start:
            level = min(level, (start & -start).bit_length() - 1)  # and that may begin here
        yield level, start >> level
        start += 1 << level


class BlockFold:
    """Folds the arrays of consecutive clients as they come, with at most one partial result per level.

    This runs once per client with whatever the client computed in the cache instead of this code, so it is short.

    Args:
      operation: The associative operation.
      start: The index of the first client.
      spare: Buffers of the arrays' shape to use; those that become free go there.
    """

    __slots__ = ("_next", "_operation", "_spare", "_start", "_waiting")

    def __init__(self, operation: np.ufunc, start: int, spare: SpareBuffers) -> None:
        self._operation = operation
        self._start = self._next = start
        self._spare = spare
        # The folds of `aligned_blocks` so far, in their order, each with whether it is ours to write into.
        self._waiting: list[tuple[np.ndarray, bool]] = []

    def add(self, array: np.ndarray, owned: bool) -> None:
        """Takes in the array of the next client, of the same shape as the others, and whether we may write into it."""
        # A binary counter: where the client's index ends in ones, so many blocks are complete that began here.
        position, first = self._next, self._start
        self._next = position + 1
        waiting = self._waiting
        while position & 1 and position > first:
            left, left_owned = waiting.pop()
            if owned and left_owned:  # as in `combine`, without the call
                self._operation(left, array, out=array)
                self._spare.put(left)
            else:
                array = combine(self._operation, left, left_owned, array, owned, self._spare)
                owned = True
            position >>= 1
            first = (first + 1) >> 1
        waiting.append((array, owned))

    def partials(self) -> list[Partial]:
        """Returns the folds of the aligned blocks that the clients so far make up."""
        blocks = aligned_blocks(range(self._start, self._next))
        return [Partial(*block, *folded) for block, folded in zip(blocks, self._waiting, strict=True)]

    def total(self) -> np.ndarray:
        """Combines the folds of all clients so far, at least one, from the smallest block up, and uses them up.

        The result is in the buffer of the largest block, if that is ours.
        """
        total, owned = self._waiting.pop()
        while self._waiting:
            left, left_owned = self._waiting.pop()
            if left_owned:
                total = self._operation(left, total, out=left)
            else:
                total = combine(self._operation, left, left_owned, total, owned, self._spare)
            owned = True
        return total
