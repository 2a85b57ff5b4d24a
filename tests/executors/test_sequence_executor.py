"""Sums over sequences that are held as arrays have the bits of one addition after the other."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.executors import sequence_executor

DTYPES = (np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64, np.complex64, ml_dtypes.bfloat16)


def total(rows):
    """Adds one row after the other."""
    result = rows[0].copy()
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            result = np.add(result, row)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.data())
def test_a_sum_of_rows_has_the_bits_of_one_addition_after_the_other(dtype, data):
    shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,), (5000,)]))
    count = data.draw(st.integers(1, 5000 if len(shape) < 2 and shape != (5000,) else 30))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = (random.standard_normal((count, *shape)) * 100).astype(dtype)
    rows.flags.writeable = False
    with np.errstate(all="ignore"):
        found = sequence_executor.added_rows(rows)
    expected = total(rows)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
