"""Folds arrays along a fixed tree, in any order of arrival and on any number of threads.

The tree is a binary counter over client indices. A node (level, position) represents the clients from
position·2^level up to, but excluding, (position+1)·2^level. Two siblings are combined as soon as both are known, with
the left sibling as the first operand. At the end, the remaining nodes are combined from the smallest block up. A float
sum therefore has the same bits for every division of the clients into slices, and its error grows with log n, not n.

`fold_rows` folds stacked values level by level, `BlockFold` folds client by client with one partial result per level,
and `TreeFold` combines the results of both. `leaf_fold.py` selects the traversal for one tensor.
"""

import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

_MAX_SPARE = 8


class Partial(NamedTuple):
    """The fold of an aligned block of clients.

    Attributes:
      level: The block has 2^level clients.
      position: The index of the block among the blocks of its level.
      value: The result of the fold, a NumPy scalar or array; `None` if all clients of the block are absent.
      owned: Whether the fold owns the array and may write to it.
    """

    level: int
    position: int
    value: np.ndarray | None
    owned: bool

    def above(self) -> "Partial":
        """Returns this partial result as that of the block of twice the size, whose other clients are absent."""
        return self._replace(level=self.level + 1, position=self.position >> 1)


class SpareBuffers:
    """A pool of free buffers of one shape and dtype, shared by several threads.

    Reusing a buffer is cheaper than allocating fresh pages. Buffers are kept only after the first call of `take`. Until
    then, used buffers are returned to the allocator, where leaf functions can reuse the memory.

    Args:
      free: The list that holds the free buffers, with any initial ones. Buffers are taken from its end.
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
        except IndexError:  # checking first would race with other threads
            return np.empty(like.shape, like.dtype)

    def put(self, buffer: np.ndarray) -> None:
        """Adds a buffer to the pool. It must have no readers, because another thread may overwrite it immediately."""
        if self._wanted and len(self._free) < self._most:
            self._free.append(buffer)


class TreeFold:
    """The fold of one tensor over clients. Several threads may call `add` concurrently."""

    def __init__(self, operation: np.ufunc) -> None:
        self.operation = operation
        self.spare = SpareBuffers()
        self._partials: dict[tuple[int, int], Partial] = {}
        self._lock = threading.Lock()

    def add(self, partials: Sequence[Partial]) -> None:
        """Adds the partial results of blocks of clients."""
        for partial in partials:
            while (other := self._take_sibling(partial)) is not None:
                partial = self._combine(other, partial) if partial.position & 1 else self._combine(partial, other)

    def skip(self, clients: range) -> None:
        """Adds clients that are absent. A block is the fold of the clients that are present."""
        self.add([Partial(level, position, None, False) for level, position in aligned_blocks(clients)])

    def _take_sibling(self, partial: Partial) -> Partial | None:
        """Removes and returns the sibling of a partial result; stores the partial result if it has no sibling yet."""
        with self._lock:
            other = self._partials.pop((partial.level, partial.position ^ 1), None)
            if other is None:
                self._partials[partial.level, partial.position] = partial
        return other

    def take(self, clients: range, without: Container[int] = ()) -> list[Partial] | None:
        """Removes and returns the partial results of a range of clients, from the first client to the last.

        Returns `None`, and removes nothing, if these partial results are not all there: another thread may be combining
        some of them with later ones.

        Args:
          clients: The clients.
          without: Clients that have not been added.
        """
        with self._lock:
            found = sorted(
                (p for p in self._partials.values() if clients.start <= p.position << p.level < clients.stop),
                key=lambda p: p.position << p.level,
            )
            if not covers(found, clients, without):
                return None
            for partial in found:
                del self._partials[partial.level, partial.position]
        return found

    def partials(self) -> list[Partial]:
        """Returns the partial results, from the first client to the last."""
        with self._lock:
            return sorted(self._partials.values(), key=lambda p: p.position << p.level)

    def result(self) -> np.ndarray | None:
        """Returns the combination of the partial results, from the smallest block up; `None` if nobody is present.

        The result is a separate array. Call this method only once, because it overwrites partial results.
        """
        remaining = self.partials()
        if not remaining:
            return None
        total = remaining.pop()
        while remaining:
            total = self._combine(remaining.pop(), total)
        if total.value is None:
            return None
        return np.asarray(total.value) if total.owned else np.array(total.value)

    def _combine(self, left: Partial, right: Partial) -> Partial:
        if left.value is None:
            return right.above()
        if right.value is None:
            return left.above()
        value = combine(self.operation, left.value, left.owned, right.value, right.owned, self.spare)
        return Partial(left.level + 1, left.position >> 1, value, True)


def covers(partials: Iterable[Partial], clients: range, without: Container[int] = ()) -> bool:
    """Returns whether partial results, from the first client to the last, are those of exactly the given clients.

    Args:
      partials: The partial results.
      clients: A range of clients.
      without: The clients of the range of which there must be no partial results.
    """
    reached = next_of(clients.start, clients, without)
    for partial in partials:
        if partial.position << partial.level != reached:
            return False
        reached = next_of(reached + (1 << partial.level), clients, without)
    return reached == clients.stop


def next_of(client: int, clients: range, without: Container[int]) -> int:
    """Returns the index of the first client of a range, from `client` on, that is not among others."""
    while client < clients.stop and client in without:
        client += 1
    return client


def combine(
    operation: np.ufunc, left: np.ndarray, left_owned: bool, right: np.ndarray, right_owned: bool, spare: SpareBuffers
) -> np.ndarray:
    """Returns the combination of two adjacent blocks, computed in place if the fold owns one of their arrays.

    If the fold owns both arrays, the result is written to the right array, which is usually newer and still in the
    cache. The freed memory of the left array then has an older allocation above it, so that the allocator does not
    immediately return this memory to the system.
    """
    if not left.ndim:
        return operation(left, right)
    if not right_owned:
        return operation(left, right, out=left if left_owned else spare.take(left))
    operation(left, right, out=right)
    if left_owned:
        spare.put(left)
    return right


def fold_rows(
    operation: np.ufunc, values: np.ndarray, start: int, *, level: int = 0, in_place: bool = False
) -> list[Partial]:
    """Folds scalars or stacked small arrays, level by level.

    Args:
      operation: The associative operation.
      values: The values of consecutive clients, or of consecutive blocks of 2 to the power of `level` clients, shape
        [clients, ...].
      start: The position of the first one.
      level: The level of the values.
      in_place: Whether to overwrite `values`, which must then contain arrays. If so, the partial results are copies.

    Returns:
      The partial results of the aligned blocks that make up the clients, at most two per level.
    """
    partials: list[Partial] = []
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
        return [Partial(one.level, one.position, np.copy(cast(np.ndarray, one.value)), True) for one in partials]
    return partials


def aligned_blocks(clients: range) -> Iterator[tuple[int, int]]:
    """Yields the level and position of each block, in client order, of the smallest set that covers the clients."""
    start = clients.start
    while start < clients.stop:
        level = (clients.stop - start).bit_length() - 1  # the largest block that fits
        if start:
            level = min(level, (start & -start).bit_length() - 1)  # and is aligned at `start`
        yield level, start >> level
        start += 1 << level


class BlockFold:
    """Folds the arrays of consecutive clients one by one, with at most one partial result per level.

    `add` is kept short: it runs once per client, after the client's own work has evicted this code from the cache.

    Args:
      operation: The associative operation.
      start: The index of the first client.
      spare: Buffers of the arrays' shape. Buffers that become free are returned to this pool.
    """

    __slots__ = ("_next", "_operation", "_spare", "_start", "_waiting")

    def __init__(self, operation: np.ufunc, start: int, spare: SpareBuffers) -> None:
        self._operation = operation
        self._start = self._next = start
        self._spare = spare
        # The partial results of `aligned_blocks` so far, in the same order, each with whether the fold owns its array.
        self._waiting: list[tuple[np.ndarray, bool]] = []

    def add(self, array: np.ndarray, owned: bool) -> None:
        """Adds the next client's array, of the same shape as earlier arrays. If `owned`, the fold may write to it."""
        # As in a binary counter, each trailing 1 bit of a client's index is a block that the client completes.
        position, first = self._next, self._start
        self._next = position + 1
        waiting = self._waiting
        while position & 1 and position > first:
            left, left_owned = waiting.pop()
            if owned and left_owned:  # same as `combine`, without the cost of a call
                self._operation(left, array, out=array)
                self._spare.put(left)
            else:
                array = combine(self._operation, left, left_owned, array, owned, self._spare)
                owned = True
            position >>= 1
            first = (first + 1) >> 1
        waiting.append((array, owned))

    def partials(self) -> list[Partial]:
        """Returns the partial results of the aligned blocks that make up the clients so far."""
        blocks = aligned_blocks(range(self._start, self._next))
        return [Partial(*block, *folded) for block, folded in zip(blocks, self._waiting, strict=True)]

    def total(self) -> np.ndarray:
        """Returns the fold of all clients so far, and consumes the blocks. There must be at least one client.

        The blocks are combined from the smallest up, in the array of the largest block if the fold owns this array.
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
