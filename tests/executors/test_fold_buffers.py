"""Folds use buffers again, and threads share them."""

from typing import Any

import numpy as np

from fedstack.executors.tree_fold import Partial, SpareBuffers, combine


def ours(position: int) -> Partial:
    return Partial(0, position, np.full(3, position + 1.0), True)


def test_a_buffer_is_not_given_back_before_it_has_been_read() -> None:
    spare = SpareBuffers()
    asked = spare.take(np.empty(3))
    spare.put(asked)
    assert spare.take(np.empty(3)) is asked
    left, right = ours(0), ours(1)
    seen: list[np.ndarray] = []

    def add(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
        seen.append(spare.take(np.empty(3)))  # as another thread might, now
        return np.add(a, b, out)

    total = combine(add, left, right, spare)  # type: ignore[arg-type]
    assert total[:2] == (1, 0)
    assert total.value.tolist() == [3.0, 3.0, 3.0]
    assert not any(np.shares_memory(seen[0], partial.value) for partial in (left, right))


def test_of_two_buffers_the_newer_takes_the_result() -> None:
    spare = SpareBuffers()
    spare.take(np.empty(3))
    for older, newer in ((ours(0), ours(1)), (ours(1), ours(0))):
        order: list[Any] = []

        def note(a: np.ndarray, b: np.ndarray, out: np.ndarray, order: list[Any] = order) -> np.ndarray:
            order.extend([float(a[0]), float(b[0])])
            return np.add(a, b, out)

        total = combine(note, older, newer, spare)  # type: ignore[arg-type]
        assert total.value is newer.value
        assert order == [1.0, 2.0]  # the earlier clients always come first
        assert spare.take(np.empty(3)) is older.value


def test_nothing_is_kept_for_a_fold_that_never_asks() -> None:
    spare = SpareBuffers()
    spare.put(np.empty(3))
    assert not np.shares_memory(spare.take(np.empty(3)), spare.take(np.empty(3)))
    assert spare._free == []
