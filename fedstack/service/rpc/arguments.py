"""Reads the arguments that servers and clients have from TensorFlow's."""

import math
import numbers

from fedstack.errors import InvalidValueError
from fedstack.foundations.value_text import describe


def check_layer(rpc_layer: object) -> None:
    """Checks the name of what calls travel by.

    Raises:
      InvalidValueError: If it is not the one that there is.
    """
    if rpc_layer != "grpc":
        raise InvalidValueError(f'Expected "grpc" as rpc_layer, found {describe(rpc_layer)}; there is no other one')


def seconds_of(timeout_in_ms: float, default: float = 0.0) -> float:
    """Returns a timeout in seconds, where 0 is none: the default for 0 milliseconds, none for a negative number.

    Raises:
      InvalidValueError: If it is no number.
    """
    found: object = timeout_in_ms
    if isinstance(found, bool) or not isinstance(found, numbers.Real) or math.isnan(found):
        raise InvalidValueError(f"Expected timeout_in_ms as a number, found {describe(found)}")
    return max(0.0, float(timeout_in_ms) / 1000) if timeout_in_ms else default
