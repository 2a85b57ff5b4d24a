"""Blocks travel in the size that was asked for: small ones together, large ones in pieces, the first ones soon."""

import math
import time
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest

from fedstack.computations.values.columns import Column, ListColumn, RowsColumn, ScalarColumn, StructColumn
from fedstack.errors import InvalidValueError
from fedstack.service.data.reading import blocks
from fedstack.service.data.reading.blocks import sized_blocks

INT = fl.TensorType(np.int64)
MIB = 1 << 20


@pytest.fixture(autouse=True)
def any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with much to do anything may take long."""
    monkeypatch.setattr(blocks, "SECONDS_TOGETHER", math.inf)


def numbers(*sizes: int) -> Iterator[Column]:
    first = 0
    for size in sizes:
        yield ScalarColumn(np.arange(first, first + size))
        first += size


def shape_of(blocks: Iterator[Column], element: fl.Type, most_bytes: int) -> list[tuple[int, bool]]:
    return [(len(column), is_last) for column, is_last in sized_blocks(blocks, element, most_bytes)]


def test_small_blocks_are_joined_and_the_last_is_known() -> None:
    found = list(sized_blocks(numbers(1, 2, 4, 1), INT, 800))
    assert [is_last for _, is_last in found] == [True]
    assert [int(item) for item in found[0][0].items()] == list(range(8))
    assert shape_of(numbers(), INT, 800) == []


def test_no_block_is_larger_than_asked_for_unless_an_element_is() -> None:
    assert shape_of(numbers(60, 60, 250), INT, 800) == [
        (60, False),
        (60, False),
        (100, False),
        (100, False),
        (50, True),
    ]
    assert shape_of(numbers(3), INT, 1) == [(1, False)] * 3


def test_blocks_grow_after_the_first() -> None:
    rows = MIB // 8
    sizes = [len(column) * 8 // MIB for column, _ in sized_blocks(numbers(*[rows] * 30), INT, 8 * MIB)]
    assert sizes[0] == 1
    assert sorted(sizes) == sizes or sizes[:-1] == sorted(sizes[:-1])
    assert sum(sizes) == 30
    assert max(sizes) <= 8


def test_what_takes_long_to_make_does_not_wait_for_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SECONDS_TOGETHER", 0.005)

    def slowly() -> Iterator[Column]:
        for block in numbers(1, 1, 1):
            time.sleep(0.02)
            yield block

    assert shape_of(slowly(), INT, MIB) == [(1, False)] * 3


def test_columns_that_make_none_together_stay_apart() -> None:
    element = fl.StructType([("a", fl.TensorType(np.float32, [None])), ("b", np.str_)])

    def blocks() -> Iterator[Column]:
        for length in (3, 3, 2):
            arrays = RowsColumn(np.zeros((2, length), np.float32))
            yield StructColumn((arrays, ListColumn([b"x", b"y"])), 2)

    found = list(sized_blocks(blocks(), element, MIB))
    assert [len(column) for column, _ in found] == [4, 2]
    assert [item[0].shape for column, _ in found for item in column.items()] == [(3,)] * 4 + [(2,)] * 2


def test_elements_before_an_error_come_out_before_it() -> None:
    def failing() -> Iterator[Column]:
        yield from numbers(1, 2)
        raise InvalidValueError("no more")

    blocks = sized_blocks(failing(), INT, MIB)
    column, is_last = next(blocks)
    assert (len(column), is_last) == (3, False)
    with pytest.raises(InvalidValueError, match="no more"):
        next(blocks)
