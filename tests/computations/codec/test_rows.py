"""Rows that are pickled: bare memory, which the receiver takes as it is, and may not change."""

import pickle

import numpy as np
import pytest

from fedstack.foundations.segments import Rows

ARRAYS = [np.arange(6, dtype=np.int16).reshape(2, 3) + row for row in range(4)]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_rows_come_back_with_their_dtype_and_shape(protocol: int) -> None:
    found = pickle.loads(pickle.dumps(Rows(ARRAYS), protocol))
    assert found.row_bytes == 12
    assert found.nbytes == 48
    np.testing.assert_array_equal(found.arrays, ARRAYS)
    assert {array.dtype for array in found.arrays} == {np.dtype(np.int16)}


def test_memory_beside_the_pickle_is_taken_without_a_copy_and_cannot_be_written_to() -> None:
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(Rows(ARRAYS), 5, buffer_callback=buffers.append)
    found = pickle.loads(sent, buffers=buffers)
    assert all(np.shares_memory(array, given) for array, given in zip(found.arrays, ARRAYS))
    assert not any(array.flags.writeable for array in found.arrays)


def test_a_copy_of_rows_shares_no_memory() -> None:
    copied = Rows(ARRAYS).copy()
    np.testing.assert_array_equal(copied.arrays, ARRAYS)
    assert not any(np.shares_memory(array, given) for array, given in zip(copied.arrays, ARRAYS))
