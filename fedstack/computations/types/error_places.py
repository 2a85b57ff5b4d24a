"""Adds to errors where they came up, on their way out."""

from typing import TypeVar

from fedstack.errors import FedstackError

_Error = TypeVar("_Error", bound=FedstackError)
_FRAMES = '\n  File "'


def with_place(error: _Error, place: str) -> _Error:
    """Returns an error of the same class and contents whose message has another place in it.

    It is another object: errors are kept together with the values that they stand for, and raised again.

    Args:
      error: What was raised.
      place: Where, as in "at client 3", or what to do there.
    """
    # The user's own lines come last in a message.
    message, frames, lines = str(error).partition(_FRAMES)
    placed = type(error).__new__(type(error))  # not by copy(), which asks for an __init__ that takes the message alone
    vars(placed).update(vars(error))
    placed.args = (f"{message}; {place}{frames}{lines}", *error.args[1:])
    return placed.with_traceback(error.__traceback__)
