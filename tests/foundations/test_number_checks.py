"""What is said of numbers that users give."""

import numpy as np
import pytest

from fedstack.errors import InvalidValueError
from fedstack.foundations.number_checks import check_number, check_whole_number


@pytest.mark.parametrize("value", [2, np.int64(2), np.array(2)])
def test_a_whole_number_may_be_one_of_numpys(value: object) -> None:
    found = check_whole_number("n", value, 1)
    assert (found, type(found)) == (2, int)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("2", "str '2'"),
        (None, "None"),
        (2.0, "float 2.0"),
        (float("nan"), "float nan"),
        (True, "bool True"),
        (np.bool_(True), "bool True"),
        (np.array([1, 2]), r"an array int64\[2\]"),
    ],
    ids=str,
)
def test_what_is_no_whole_number_is_said_to_be_none(value: object, found: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^Expected n to be a whole number of at least 1, found {found}$"):
        check_whole_number("n", value, 1)


def test_a_whole_number_out_of_its_range_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"^Expected n of at least 1, found 0$"):
        check_whole_number("n", 0, 1)
    with pytest.raises(InvalidValueError, match=r"^Expected n from 1 to 3, found 4$"):
        check_whole_number("n", 4, 1, 3)
    assert check_whole_number("n", -(10**30)) == -(10**30)
    with pytest.raises(InvalidValueError, match=r"^Expected n to be a whole number, found str 'all'$"):
        check_whole_number("n", "all")


@pytest.mark.parametrize("value", [0, 1.5, np.float32(1), np.int8(1)])
def test_a_number_need_not_be_whole(value: object) -> None:
    check_number("n", value)


@pytest.mark.parametrize(
    ("value", "positive", "message"),
    [
        (float("nan"), False, "of at least 0, found nan"),
        (-1, False, "of at least 0, found -1"),
        (float("-inf"), False, "of at least 0.*, found -inf"),
        (float("inf"), False, "of at least 0, and finite, found inf"),
        ("x", False, "to be a number of at least 0, found str 'x'"),
        (None, False, "to be a number of at least 0, found None"),
        (True, False, "to be a number of at least 0, found bool True"),
        (0, True, "of more than 0, found 0"),
    ],
)
def test_a_number_that_cannot_be_used_is_named(value: object, positive: bool, message: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^Expected n {message}$"):
        check_number("n", value, positive=positive)


def test_a_number_may_be_infinite_where_that_makes_sense() -> None:
    check_number("n", float("inf"), endless=True)
    with pytest.raises(InvalidValueError, match="of at least 0, found -inf"):
        check_number("n", float("-inf"), endless=True)
