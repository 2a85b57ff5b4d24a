"""Checks the numbers and flags that say how data is laid out."""

import operator
from typing import Any, cast

import numpy as np

from fedstack.errors import InvalidValueError, TypeMismatchError

_BOOLS = (bool, np.bool_)


def checked_flag(name: str, value: object) -> bool:
    """Returns a flag.

    Raises:
      TypeMismatchError: If it is none.
    """
    if not isinstance(value, _BOOLS):
        raise TypeMismatchError(f"Expected {name} to be True or False, found `{type(value).__name__}`")
    return bool(cast(object, value))


def checked_seed(name: str, value: object, most: int | None = None) -> int:
    """Returns an integer from 0 up to `most`.

    Raises:
      TypeMismatchError: If it is none.
      InvalidValueError: If it is out of range.
    """
    number = checked_integer(name, value)
    if number < 0:
        raise InvalidValueError(f"Expected {name} to be zero or more, found {number}; give a non-negative integer")
    if most is not None and number > most:
        bits = most.bit_length()
        raise InvalidValueError(f"Expected {name} below 2**{bits}, found one of {number.bit_length()} bits")
    return number


def checked_positive(name: str, value: object) -> int:
    """Returns an integer of one or more.

    Raises:
      TypeMismatchError: If it is none.
      InvalidValueError: If it is less.
    """
    number = checked_integer(name, value)
    if number < 1:
        raise InvalidValueError(f"Expected {name} to be one or more, found {number}; give a positive integer")
    return number


def checked_integer(name: str, value: object) -> int:
    """Returns an integer.

    Raises:
      TypeMismatchError: If it is none.
    """
    found = type(value).__name__
    try:
        if not isinstance(value, _BOOLS):
            return operator.index(cast("Any", value))
    except TypeError:
        pass
    raise TypeMismatchError(f"Expected {name} to be an integer, found `{found}`; give an integer")
