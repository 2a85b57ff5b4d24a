"""Folds long vectors that are all there, by ranges of elements side by side, into one output each."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from fedstack.computations.plan.tasks import Fold
from fedstack.computations.values.columns import Column
from fedstack.errors import FedstackError
from fedstack.executors.concurrency.leaf_threads import CORES, LeafThreads
from fedstack.executors.folds.fold_states import LeafFold, MeanState, TreeState, leaf_columns
from fedstack.executors.folds.tree_fold import Partial, aligned_blocks, fold_held

_MIN_BYTES_PER_THREAD = 16 << 20


async def fold_held_columns(
    threads: LeafThreads | None, state: object, column: Column, fold: Fold, first_client: int, *, all_clients: bool
) -> bool:
    """Folds a column of long vectors into a state; tells whether it could.

    Args:
      threads: Do the work; without them it cannot be done so.
      state: A `TreeState` or `MeanState` that has taken in nothing yet.
      column: The vectors of all clients.
      fold: The aggregation.
      first_client: The index of the client that the first vector is of.
      all_clients: Whether these are all clients that there are, so that nothing is merged with the result.
    """
    if threads is None or not isinstance(state, (TreeState, MeanState)):
        return False
    pairs = list(zip(state.leaves, leaf_columns(column, fold.member)))
    rows = [cast("Sequence[np.ndarray]", leaf_column.items()) for _, leaf_column in pairs]
    for (leaf, _), arrays in zip(pairs, rows):
        if leaf.dtype != leaf.tensor.dtype or any(array.shape != arrays[0].shape for array in arrays):
            return False
    await threads.run(
        lambda: [_fold_leaf(threads, leaf, arrays, first_client, all_clients) for (leaf, _), arrays in zip(pairs, rows)]
    )
    if isinstance(state, MeanState):
        state.count += len(column)
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
    workers = min(CORES, threads.max_threads, max(1, size * out.itemsize * len(arrays) // _MIN_BYTES_PER_THREAD))
    bounds = [size * i // workers for i in range(workers + 1)]

    def fold_range(index: int) -> None:
        with np.errstate(all="ignore"):
            fold_held(leaf.tree.operation, flat, flat_out, bounds[index], bounds[index + 1])

    others = [threads.submit(lambda index=index: fold_range(index)) for index in range(1, workers)]
    fold_range(0)
    for index, other in enumerate(others, 1):
        # All other threads may be busy, and this one may be the only one: what has not begun is done here.
        if other.cancel() or isinstance(other.exception(), FedstackError):
            fold_range(index)
        else:
            other.result()
    return out
