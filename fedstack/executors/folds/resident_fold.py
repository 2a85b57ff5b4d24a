"""Folds long vectors that are all there, by ranges of elements side by side, into one output each."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Fold
from fedstack.computations.values.columns import Column
from fedstack.errors import FedstackError
from fedstack.executors.concurrency.leaf_threads import CORES, LeafThreads
from fedstack.executors.folds.fold_states import FoldState, TreeState
from fedstack.executors.folds.leaf_fold import LeafFold, leaf_columns
from fedstack.executors.folds.tree_fold import BlockFold, Partial, SpareBuffers, aligned_blocks

_MIN_BYTES_PER_THREAD = 16 << 20
# A row and the partial results of two or three levels fit the second-level cache then. Measured: a fold of 1,000 arrays
# of 400 KB takes 1.18 times an in-place sum, one of 40 MB arrays 1.02; with half of this it is 1.26, for the calls.
_SCRATCH_BYTES = 200 * 1024


async def fold_resident_columns(
    threads: LeafThreads | None, state: FoldState, column: Column, fold: Fold, first_client: int, *, all_clients: bool
) -> bool:
    """Folds a column of long vectors into a state, and returns whether it could.

    Args:
      threads: Do the work; without them it cannot be done so.
      state: The state, which has taken in nothing yet.
      column: The vectors of all clients.
      fold: The aggregation.
      first_client: The index of the client that the first vector is of.
      all_clients: Whether these are all clients that there are, so that nothing is merged with the result.
    """
    if threads is None or not isinstance(state, TreeState):
        return False
    pairs = list(zip(state.leaves, leaf_columns(column, fold.member)))
    rows = [cast("Sequence[np.ndarray]", leaf_column.items()) for _, leaf_column in pairs]
    for (leaf, _), arrays in zip(pairs, rows):
        if leaf.dtype != leaf.tensor.dtype or any(array.shape != arrays[0].shape for array in arrays):
            return False
    await threads.run(
        lambda: [_fold_leaf(threads, leaf, arrays, first_client, all_clients) for (leaf, _), arrays in zip(pairs, rows)]
    )
    state.add_clients(len(column))
    return True


def _fold_leaf(
    threads: LeafThreads, leaf: LeafFold, arrays: Sequence[np.ndarray], first_client: int, all_clients: bool
) -> None:
    if all_clients:
        # A finished fold goes in as one partial; nothing else may follow.
        leaf.tree.add([Partial(len(arrays).bit_length(), 0, _fold_block(threads, leaf, arrays), True)])
        return
    for level, position in aligned_blocks(range(first_client, first_client + len(arrays))):
        start = (position << level) - first_client
        block = arrays[start : start + (1 << level)]
        value = block[0] if level == 0 else _fold_block(threads, leaf, block)
        leaf.tree.add([Partial(level, position, value, level > 0)])


def _fold_block(threads: LeafThreads, leaf: LeafFold, arrays: Sequence[np.ndarray]) -> np.ndarray:
    flat = arrays if arrays[0].ndim == 1 else [array.reshape(-1) for array in arrays]
    out = np.empty(arrays[0].shape, leaf.dtype)
    flat_out = out.reshape(-1)
    size = flat_out.size
    cores = current_scope().cores or CORES
    workers = min(cores, threads.max_threads, max(1, size * out.itemsize * len(arrays) // _MIN_BYTES_PER_THREAD))
    bounds = [size * i // workers for i in range(workers + 1)]

    def fold_range(index: int) -> None:
        with np.errstate(all="ignore"):
            fold_elements(leaf.tree.operation, flat, flat_out, bounds[index], bounds[index + 1])

    others = [threads.submit(lambda index=index: fold_range(index)) for index in range(1, workers)]
    fold_range(0)
    for index, other in enumerate(others, 1):
        # All other threads may be busy, and this one may be the only one: what has not begun is done here.
        if other.cancel() or isinstance(other.exception(), FedstackError):
            fold_range(index)
        else:
            other.result()
    return out


def fold_elements(operation: np.ufunc, arrays: Sequence[np.ndarray], out: np.ndarray, low: int, high: int) -> None:
    """Folds arrays that are all there into `out`, for the elements from `low` to `high`.

    The tree is that of clients 0 to n-1. It is walked once for each block of elements that fits a cache, so that
    partial results never leave it and the scratch space does not grow with the arrays. Threads may do ranges of
    elements side by side.

    Args:
      operation: The associative operation.
      arrays: Flat arrays of one length, one per client; at least one.
      out: A flat array of that length that takes the result.
      low: The first element.
      high: The element after the last.
    """
    blocks = max(1, -(-(high - low) * out.itemsize // _SCRATCH_BYTES))
    width = max(1, -(-(high - low) // blocks))
    # One partial result per level above the lowest; `out` is the buffer of one of them.
    scratch = [np.empty(width, out.dtype) for _ in range(len(arrays).bit_length() - 2)]
    for begin in range(low, high, width):
        block = slice(begin, min(begin + width, high))
        target = out[block]
        free = [target, *(buffer[: len(target)] for buffer in scratch)]
        pairs = BlockFold(operation, 0, SpareBuffers(free))
        add, is_whole = pairs.add, len(target) == len(out)
        for index in range(1, len(arrays), 2):
            left, right = arrays[index - 1], arrays[index]
            if not is_whole:
                left, right = left[block], right[block]
            add(operation(left, right, out=free.pop()), True)
        if len(arrays) & 1:
            add(arrays[-1][block], False)  # the smallest block of what remains, as in the tree of single clients
        total = pairs.total()
        if total is not target:
            target[...] = total
