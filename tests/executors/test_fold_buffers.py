"""Folds use buffers again, and threads share them."""

import numpy as np

from fedstack.executors.tree_fold import Partial, combine


def test_a_buffer_is_not_given_back_before_it_has_been_read() -> None:
    spare: list[np.ndarray] = []

    def add(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> np.ndarray:
        assert spare == []  # else another thread could write into `right` now
        return np.add(left, right, out)

    left, right = (Partial(0, position, np.full(3, position + 1.0), True) for position in (0, 1))
    assert combine(add, left, right, spare).tolist() == [3.0, 3.0, 3.0]  # type: ignore[arg-type]
    assert [buffer is right.value for buffer in spare] == [True]
