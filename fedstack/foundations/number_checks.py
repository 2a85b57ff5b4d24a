"""Checks numbers that users give, where they give them: later errors would say less."""

import math
import operator
from collections.abc import Callable
from typing import Any, SupportsIndex, TypeAlias, cast

import attrs
import numpy as np

from fedstack.errors import InvalidValueError
from fedstack.foundations.value_text import describe

# What messages have room for.
MOST_CLIENTS = (1 << 31) - 1
MOST_BYTES = (1 << 63) - 1
MOST_MESSAGE_BYTES = (1 << 31) - 1

Validator: TypeAlias = Callable[[object, "attrs.Attribute[Any]", object], None]


def check_whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """Returns a whole number, of NumPy's too, as one of Python's.

    Args:
      name: What it is called in the message.
      value: What the user gave.
      least: The least that it may be.
      most: The most that it may be; `None` for any number.

    Raises:
      InvalidValueError: If it is none, or out of its range.
    """
    number = whole_number_of(value)
    if number is None or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        found = describe(value) if number is None else value
        raise InvalidValueError(f"Expected {name} {bounds}{' as a whole number' * (number is None)}, found {found}")
    return number


def whole_number_of(value: object) -> int | None:
    """Returns a whole number as one of Python's; `None` for anything else, a truth value too."""
    if type(value) is int:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array that has more than one number
        return None


def check_number(name: str, value: object, *, positive: bool = False, endless: bool = False) -> None:
    """Checks a number that need not be whole, such as a length of time.

    Args:
      name: What it is called in the message.
      value: What the user gave.
      positive: Whether it must be more than 0.
      endless: Whether it may be infinite.

    Raises:
      InvalidValueError: If it is none, NaN, or out of its range.
    """
    bounds = "of more than 0" if positive else "of at least 0"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidValueError(f"Expected {name} {bounds} as a number, found {describe(cast(object, value))}")
    try:
        number = float(cast(float, value))
    except OverflowError:  # a whole number of hundreds of digits
        number = math.copysign(math.inf, cast(int, value) > 0 or -1)
    if not (number > 0 if positive else number >= 0) or (math.isinf(number) and not endless):
        bounds += "" if endless else ", and finite" if math.isinf(number) else ""
        raise InvalidValueError(f"Expected {name} {bounds}, found {value}")


def whole_number_validator(least: int, most: int | None = None) -> Validator:
    """Returns the validator of a field of attrs with a whole number; see `check_whole_number`."""

    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        check_whole_number(attribute.name, value, least, most)

    return validate


def number_validator(*, positive: bool = False, endless: bool = False) -> Validator:
    """Returns the validator of a field of attrs with a number; see `check_number`."""

    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        check_number(attribute.name, value, positive=positive, endless=endless)

    return validate


def check_bool(name: str, value: object) -> bool:
    """Returns `True` or `False`, of NumPy's too, as one of Python's.

    Args:
      name: What it is called in the message.
      value: What the user gave.

    Raises:
      InvalidValueError: If it is anything else, a number too.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidValueError(f"Expected {name} to be True or False, found {describe(value)}")
    return bool(cast(object, value))
