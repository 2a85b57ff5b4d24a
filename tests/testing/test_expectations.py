"""How rows compare: what counts as the same, and what a failure says."""

import asyncio
from collections import OrderedDict
from typing import NamedTuple

import attrs
import numpy as np
import pytest

from fedstack.computations.types.language import Struct
from fedstack.testing.expectations import expect, expect_error, expect_same, expect_same_bits, plain


class Point(NamedTuple):
    x: object
    y: object


@attrs.define
class Pair:
    x: object
    y: object


SAME = [
    (np.float32(1), np.float32(1)),
    (np.float32("nan"), np.float32("nan")),
    (np.complex64(complex(1, float("nan"))), np.complex64(complex(1, float("nan")))),
    (np.dtype("bfloat16").type("nan"), np.dtype("bfloat16").type("nan")),
    (np.array([1, 2]), np.array([1, 2])),
    (np.array([b"a", b"b\x00"], object), np.array([b"a", b"b\x00"], object)),
    (b"a\x00", b"a\x00"),
    (Point(1, 2), {"x": 1, "y": 2}),
    (Pair(1, 2), OrderedDict(x=1, y=2)),
    (Struct([("x", 1), ("y", Struct([(None, 2)]))]), {"x": 1, "y": (2,)}),
    (Struct([("x", 1), (None, 2)]), (1, 2)),
    ([1, (2, [])], (1, [2, ()])),
]
DIFFERENT = [
    (np.float32(1), np.float64(1), "float64"),
    (np.float32(1), np.float32(2), "2.0"),
    (1.0, np.float32(1), "float 1.0"),
    (np.array(1.0), np.float64(1), "float64"),
    (np.array([1]), np.array([1, 1]), "[2]"),
    (np.array([1, 2]), np.array([1, 3]), "3"),
    (b"a", b"a\x00", "a"),
    ("a", b"a", "bytes"),
    ({"y": 1, "x": 2}, {"x": 2, "y": 1}, "'x', 'y'"),
    ({"x": 1}, {"x": 1, "y": 1}, "'y'"),
    ([1], [1, 2], "2"),
    (3, [3], "int 3"),
    (3, {"x": 3}, "int 3"),
    (True, 1, "int 1"),
]


@pytest.mark.parametrize(("found", "expected"), SAME)
def test_equal_values_are_the_same_whatever_their_containers(found, expected) -> None:
    expect_same(found, expected)


@pytest.mark.parametrize(("found", "expected", "fragment"), DIFFERENT)
def test_a_difference_of_any_kind_is_found_and_shown(found, expected, fragment) -> None:
    with pytest.raises(AssertionError, match=r"^Expected .*, found ") as caught:
        expect_same(found, expected)
    assert fragment in str(caught.value)


def test_a_difference_inside_is_shown_with_its_place() -> None:
    with pytest.raises(AssertionError, match=r"as the mean\.x\[1\], found"):
        expect_same({"x": [1, 2]}, {"x": [1, 3]}, "the mean")


def test_bits_tell_zeros_apart() -> None:
    expect_same(np.float32(0.0), np.float32(-0.0))
    with pytest.raises(AssertionError, match="the bits"):
        expect_same_bits([np.float32(0.0)], [np.float32(-0.0)])
    expect_same_bits({"a": np.array([b"a"], object)}, {"a": np.array([b"a"], object)})


def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(AssertionError) as caught:
        expect(False, "x" * 5000, "y" * 5000)
    assert len(str(caught.value)) < 1000


def test_plain_leaves_other_values_alone() -> None:
    value = object()
    assert plain(value) is value
    assert plain([Point(1, 2)]) == [{"x": 1, "y": 2}]


async def value_error() -> None:
    raise ValueError("a bad value")


def test_an_expected_error_is_returned() -> None:
    assert str(asyncio.run(expect_error(value_error(), ValueError, "bad"))) == "a bad value"


@pytest.mark.parametrize(
    ("error_class", "fragments", "message"),
    [
        (TypeError, (), "Expected TypeError to be raised, found ValueError: a bad value"),
        (ValueError, ("good",), "Expected 'good' in the message of ValueError, found a bad value"),
    ],
)
def test_another_error_is_reported(error_class, fragments, message) -> None:
    with pytest.raises(AssertionError) as caught:
        asyncio.run(expect_error(value_error(), error_class, *fragments))
    assert str(caught.value) == message


def test_no_error_is_reported_with_the_value() -> None:
    with pytest.raises(AssertionError, match="Expected ValueError to be raised, found the value 3"):
        asyncio.run(expect_error(asyncio.sleep(0, 3), ValueError))
