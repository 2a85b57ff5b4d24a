import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import ListColumn, ScalarColumn, StructColumn

SIZES = st.integers(0, 3000)


def pairs(size: int) -> ColumnSequence:
    numbers = ScalarColumn(np.arange(size, dtype=np.int32))
    words = ListColumn([b"%d" % number for number in range(size)])
    return ColumnSequence(StructColumn((numbers, words), size))


@given(SIZES)
def test_iterating_again_and_again_gives_the_elements_in_order(size):
    sequence, wanted = pairs(size), [(number, b"%d" % number) for number in range(size)]
    assert list(sequence) == wanted
    assert list(sequence) == wanted
    assert len(sequence) == size


@given(SIZES)
def test_lists_have_all_elements(size):
    assert [element for some in pairs(size).lists() for element in some] == list(pairs(size))


@given(st.integers(0, 50), st.slices(60))
def test_slices_are_those_of_a_list(size, part):
    assert list(pairs(size)[part]) == list(pairs(size))[part]


@given(st.integers(1, 50), st.data())
def test_indices_are_those_of_a_list(size, data):
    index = data.draw(st.integers(-size, size - 1))
    assert pairs(size)[index] == list(pairs(size))[index]


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_outside_is_an_error(index):
    with pytest.raises(IndexError):
        pairs(3)[index]
