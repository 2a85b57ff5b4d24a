"""The fixed tree: the same bits whatever the cut, the order and the threads."""

import itertools
import random

import federated_language as fl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.computations.values.columns import ListColumn, RowsColumn
from fedstack.executors.base.phase_sink import fold_elements
from fedstack.executors.folds.leaf_fold import LeafFold
from fedstack.executors.folds.tree_fold import BlockFold, SpareBuffers, TreeFold, aligned_blocks, fold_rows


def fold_arrays(operation, rows, start, spare):
    """The fold of consecutive clients: pairs of an array and whether it may be written into."""
    block = BlockFold(operation, start, spare)
    for array, owned in rows:
        block.add(array, owned)
    return block.partials()


def fold_strangers(arrays, start):
    """The fold of arrays of which none may be written into."""
    return fold_arrays(np.add, ((array, False) for array in arrays), start, SpareBuffers())


def fold_of_block(arrays, level, position):
    if level == 0:
        return arrays[position]
    left = fold_of_block(arrays, level - 1, 2 * position)
    return np.add(left, fold_of_block(arrays, level - 1, 2 * position + 1))


def expected_sum(arrays):
    """The definition: aligned blocks, and what remains combined from the smallest block up."""
    blocks, start = [], 0
    for level in reversed(range(len(arrays).bit_length())):
        if len(arrays) >> level & 1:
            blocks.append(fold_of_block(arrays, level, start >> level))
            start += 1 << level
    total = blocks.pop()
    while blocks:
        total = np.add(blocks.pop(), total)
    return total


def uneven_arrays(count, seed):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=7) * 10.0 ** rng.integers(-3, 4)).astype(np.float32) for _ in range(count)]


@given(count=st.integers(1, 70), seed=st.integers(0, 1000))
def test_any_cut_and_any_order_give_the_bits_of_the_definition(count, seed):
    arrays = uneven_arrays(count, seed)
    order = random.Random(seed)
    cuts = sorted({0, count, *(order.randrange(count + 1) for _ in range(4))})
    slices = list(itertools.pairwise(cuts))
    order.shuffle(slices)
    fold = TreeFold(np.add)
    for start, stop in slices:
        fold.add(fold_strangers(arrays[start:stop], start))
    assert np.array_equal(fold.result(), expected_sum(arrays))


@given(count=st.integers(1, 70), seed=st.integers(0, 1000))
def test_it_makes_no_difference_which_arrays_the_fold_may_write_into(count, seed):
    arrays = uneven_arrays(count, seed)
    order = random.Random(seed)
    cut = order.randrange(count + 1)
    rows = [(array.copy(), order.random() < 0.5) for array in arrays]
    strangers = [(k, array) for k, (array, owned) in enumerate(rows) if not owned]
    fold = TreeFold(np.add)
    fold.add(fold_arrays(np.add, rows[cut:], cut, fold.spare))
    fold.add(fold_arrays(np.add, rows[:cut], 0, fold.spare))
    result = fold.result()
    assert np.array_equal(result, expected_sum(arrays))
    assert all(np.array_equal(array, arrays[k]) for k, array in strangers)
    assert not any(np.shares_memory(result, array) for _, array in strangers)


@given(count=st.integers(1, 70), seed=st.integers(0, 1000))
def test_scalars_fold_level_by_level_along_the_same_tree(count, seed):
    arrays = uneven_arrays(count, seed)
    values = np.array([array[0] for array in arrays])
    fold = TreeFold(np.add)
    cut = seed % (count + 1)
    fold.add(fold_rows(np.add, values[cut:], cut))
    fold.add(fold_rows(np.add, values[:cut], 0))
    assert fold.result() == expected_sum(arrays)[0]


@given(
    count=st.integers(1, 1200),
    shape=st.sampled_from([(1,), (0,), (7,), (3, 2), (2, 0, 3), (600,)]),
    operation=st.sampled_from([np.add, np.minimum, np.maximum]),
    weighted=st.booleans(),
    is_stacked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_small_arrays_fold_many_at_a_time_along_the_same_tree(count, shape, operation, weighted, is_stacked, seed):
    rng = np.random.default_rng(seed)
    arrays = list((rng.normal(size=(count, *shape)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32))
    factors = rng.normal(size=count).astype(np.float32) if weighted else None
    products = arrays if factors is None else [array * factor for array, factor in zip(arrays, factors, strict=True)]
    stack = np.stack(arrays)
    stack.flags.writeable = False
    cut = seed % (count + 1)
    fold, expected = LeafFold(operation, fl.TensorType(np.float32, shape), ""), TreeFold(operation)
    for start, stop in ((cut, count), (0, cut)):
        given_factors = None if factors is None else factors[start:stop]
        column = RowsColumn(stack[start:stop]) if is_stacked else ListColumn(arrays[start:stop])
        fold.feed(start, column, given_factors)
        rows = ((array, False) for array in products[start:stop])
        expected.add(fold_arrays(operation, rows, start, SpareBuffers()))
    result = fold.result()
    assert result is not None
    assert result.shape == shape
    assert np.array_equal(result, expected.result())


@pytest.mark.parametrize("count", [*range(1, 18), 100, 127, 128])
def test_held_arrays_fold_by_ranges_of_elements_along_the_same_tree(count):
    arrays = uneven_arrays(count, count)
    out = np.empty(7, np.float32)
    fold_elements(np.add, arrays, out, 0, 3)
    fold_elements(np.add, arrays, out, 3, 7)
    assert np.array_equal(out, expected_sum(arrays))
    assert all(np.array_equal(array, same) for array, same in zip(arrays, uneven_arrays(count, count), strict=True))


@given(start=st.integers(0, 10**6), count=st.integers(0, 1000))
def test_consecutive_clients_make_up_the_blocks_that_a_fold_of_them_is_left_with(start, count):
    scalars = np.zeros(count, np.float32)
    left = sorted((partial.position << partial.level, partial.level) for partial in fold_rows(np.add, scalars, start))
    assert [(position << level, level) for level, position in aligned_blocks(range(start, start + count))] == left


def test_a_fold_never_writes_into_arrays_that_are_not_its_own():
    arrays = [np.full(5, i, np.float32) for i in range(9)]
    fold = TreeFold(np.add)
    fold.add(fold_strangers(arrays, 0))
    result = fold.result()
    assert [array[0] for array in arrays] == list(range(9))
    assert not any(np.shares_memory(result, array) for array in arrays)


def test_the_result_of_a_single_client_is_a_copy():
    array = np.ones(5, np.float32)
    fold = TreeFold(np.add)
    fold.add(fold_strangers([array], 0))
    assert not np.shares_memory(fold.result(), array)


def test_a_slice_is_left_with_at_most_two_partials_per_level():
    fold = TreeFold(np.add)
    fold.add(fold_rows(np.add, np.ones(1000 - 37, np.float32), 37))
    levels = [partial.level for partial in fold.partials()]
    assert max(map(levels.count, levels)) <= 2


def test_no_clients_give_no_result():
    assert TreeFold(np.add).result() is None
