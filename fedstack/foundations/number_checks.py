"""Checks numbers and flags as soon as users pass them, so that the error message can name the parameter.

Functions named `check_…` raise InvalidValueError for every mistake. Functions named `checked_…`, which are for
arguments that describe data, raise TypeMismatchError if the value has the wrong type.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, SupportsIndex, TypeAlias, cast

import attrs
import numpy as np

from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe

# The limits of the protobuf fields that hold these numbers.
MOST_CLIENTS = (1 << 31) - 1
MOST_BYTES = (1 << 63) - 1
MOST_MESSAGE_BYTES = (1 << 31) - 1

_BOOLS = (bool, np.bool_)

Validator: TypeAlias = Callable[[object, "attrs.Attribute[Any]", object], None]


def check_whole_number(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Returns a Python or NumPy whole number as an `int`, after checking its range.

    Args:
      name: The name of the parameter, for the message.
      value: The value that the user passed.
      least: The minimum; `None` for no limits at all.
      most: The maximum; `None` for no limit.

    Raises:
      InvalidValueError: If the value is not a whole number or is out of range.
    """
    number = whole_number_of(value)
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        bounds = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        found = describe(value) if number is None else value
        raise InvalidValueError(f"Expected {name}{' to be a whole number' * (number is None)}{bounds}, found {found}")
    return number


def whole_number_of(value: object) -> int | None:
    """Returns a whole number as an `int`, or `None` for any other value, including booleans."""
    if type(value) is int:
        return value
    if isinstance(value, _BOOLS) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array with more than one element
        return None


def check_number(name: str, value: object, *, positive: bool = False, endless: bool = False) -> None:
    """Checks the range of a number that need not be whole, such as a duration.

    Args:
      name: The name of the parameter, for the message.
      value: The value that the user passed.
      positive: Whether the number must be greater than 0.
      endless: Whether the number may be infinite.

    Raises:
      InvalidValueError: If the value is not a number, is NaN, or is out of range.
    """
    bounds = "of more than 0" if positive else "of at least 0"
    if isinstance(value, _BOOLS) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidValueError(f"Expected {name} to be a number {bounds}, found {describe(cast(object, value))}")
    try:
        number = float(cast(float, value))
    except OverflowError:  # a whole number with hundreds of digits
        number = math.copysign(math.inf, cast(int, value) > 0 or -1)
    if not (number > 0 if positive else number >= 0) or (math.isinf(number) and not endless):
        bounds += "" if endless else ", and finite" if math.isinf(number) else ""
        raise InvalidValueError(f"Expected {name} {bounds}, found {value}")


def whole_number_validator(least: int, most: int | None = None) -> Validator:
    """Returns an attrs validator for a whole number; see `check_whole_number`."""

    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        check_whole_number(attribute.name, value, least, most)

    return validate


def number_validator(*, positive: bool = False, endless: bool = False) -> Validator:
    """Returns an attrs validator for a number; see `check_number`."""

    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        check_number(attribute.name, value, positive=positive, endless=endless)

    return validate


def check_bool(name: str, value: object) -> bool:
    """Checks that a value is a Python or NumPy boolean, and returns it as a `bool`.

    Args:
      name: The name of the parameter, for the message.
      value: The value that the user passed.

    Raises:
      InvalidValueError: If the value is not a boolean. The numbers 0 and 1 are not booleans.
    """
    if not isinstance(value, _BOOLS):
        raise InvalidValueError(f"Expected {name} to be True or False, found {describe(value)}")
    return bool(cast(object, value))


def checked_flag(name: str, value: object) -> bool:
    """Checks that a value is a Python or NumPy boolean, and returns it as a `bool`.

    Raises:
      TypeMismatchError: If the value is not a boolean.
    """
    try:
        return check_bool(name, value)
    except InvalidValueError as error:
        raise TypeMismatchError(str(error)) from None


def checked_seed(name: str, value: object, most: int | None = None) -> int:
    """Checks that a value is an integer from 0 to `most`, and returns it as an `int`.

    Raises:
      TypeMismatchError: If the value is not an integer.
      InvalidValueError: If the integer is out of range.
    """
    number = checked_integer(name, value)
    if number < 0:
        raise InvalidValueError(f"Expected {name} to be zero or more, found {number}; pass a non-negative integer")
    if most is not None and number > most:
        bits = most.bit_length()
        raise InvalidValueError(
            f"Expected {name} to be below 2**{bits}, found an integer of {number.bit_length()} bits; pass a smaller "
            "integer"
        )
    return number


def checked_positive(name: str, value: object) -> int:
    """Checks that a value is an integer of at least one, and returns it as an `int`.

    Raises:
      TypeMismatchError: If the value is not an integer.
      InvalidValueError: If the integer is less than one.
    """
    number = checked_integer(name, value)
    if number < 1:
        raise InvalidValueError(f"Expected {name} to be one or more, found {number}; pass a positive integer")
    return number


def checked_integer(name: str, value: object) -> int:
    """Checks that a value is a Python or NumPy integer, and returns it as an `int`.

    Raises:
      TypeMismatchError: If the value is not an integer.
    """
    number = whole_number_of(value)
    if number is None:
        raise TypeMismatchError(f"Expected {name} to be an integer, found `{type(value).__name__}`; pass an integer")
    return number
