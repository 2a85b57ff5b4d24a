"""Columns, which have one value of each client in a single object."""

import federated_language as fl
import numpy as np

from fedstack.computations.values import columns
from fedstack.computations.values.columns import ListColumn, RowsColumn, concatenate


def test_large_rows_are_joined_without_a_copy_and_small_ones_as_one_array() -> None:
    size = columns._LARGE_BYTES // 4 + 1
    member = fl.TensorType(np.float32, [size])
    arrays = [np.full((2, size), number, np.float32) for number in range(3)]
    large = concatenate([RowsColumn(array) for array in arrays], member)
    assert isinstance(large, ListColumn)
    rows = [row for array in arrays for row in array]
    assert all(np.shares_memory(found, row) for found, row in zip(large.items(), rows, strict=True))
    small = concatenate([RowsColumn(array[:, :3]) for array in arrays], fl.TensorType(np.float32, [3]))
    assert isinstance(small, RowsColumn)
    assert small.values.tolist() == [[0] * 3] * 2 + [[1] * 3] * 2 + [[2] * 3] * 2
