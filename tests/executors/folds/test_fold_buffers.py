"""Folds use buffers again, and threads share them."""

import numpy as np
import pytest

from fedstack.executors.folds.tree_fold import SpareBuffers, combine


def buffer(value: float) -> np.ndarray:
    return np.full(3, value)


def test_a_buffer_is_not_given_back_before_it_has_been_read() -> None:
    spare = SpareBuffers()
    asked = spare.take(np.empty(3))
    spare.put(asked)
    assert spare.take(np.empty(3)) is asked
    left, right = buffer(1.0), buffer(2.0)
    seen: list[np.ndarray] = []

    def add(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
        seen.append(spare.take(np.empty(3)))  # as another thread might, now
        return np.add(a, b, out)

    total = combine(add, left, True, right, True, spare)  # type: ignore[arg-type]
    assert total.tolist() == [3.0, 3.0, 3.0]
    assert not any(np.shares_memory(seen[0], value) for value in (left, right))


@pytest.mark.parametrize(("left_owned", "right_owned"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_result_goes_into_a_buffer_of_ours_the_right_one_if_both_are(left_owned: bool, right_owned: bool) -> None:
    spare = SpareBuffers()
    spare.take(np.empty(3))
    left, right = buffer(1.0), buffer(2.0)
    total = combine(np.subtract, left, left_owned, right, right_owned, spare)
    assert total.tolist() == [-1.0, -1.0, -1.0]  # the earlier clients come first
    assert (total is left, total is right) == (left_owned and not right_owned, right_owned)
    assert [free is left for free in spare._free] == [True] * (left_owned and right_owned)
    assert left_owned or left.tolist() == [1.0, 1.0, 1.0]
    assert right_owned or right.tolist() == [2.0, 2.0, 2.0]


def test_nothing_is_kept_for_a_fold_that_never_asks() -> None:
    spare = SpareBuffers()
    spare.put(np.empty(3))
    assert not np.shares_memory(spare.take(np.empty(3)), spare.take(np.empty(3)))
    assert spare._free == []
