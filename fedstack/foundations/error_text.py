"""Formats text for messages. Text from users and peers is shortened, and its control characters are escaped."""

import re
from collections.abc import Sequence
from typing import TypeVar, cast

from fedstack.errors import FedstackError

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


# Approximately the maximum size of a worker's status message.
_MAX_TEXT_BYTES = 4096
_MAX_NAME = 200
# How many exceptions of a group, and how many levels of nested groups, a message describes.
_MOST_IN_GROUP = 10
_DEEPEST_GROUP = 3
_FRAMES = '\n  File "'
_Error = TypeVar("_Error", bound=FedstackError)


def text_of(error: BaseException) -> str:
    """Returns the text of a user's exception for a message, including its notes and the exceptions of a group."""
    return shortened(printable(_text_of(error, _DEEPEST_GROUP)), _MAX_TEXT_BYTES)


def _text_of(error: BaseException, depth: int) -> str:
    try:
        text = str(error)
        notes: object = getattr(error, "__notes__", None)  # Python 3.11 introduced notes and groups
        if isinstance(notes, list) and notes:
            text += f" ({'; '.join(map(str, cast('list[object]', notes)))})"
        group: object = getattr(error, "exceptions", None)
        if depth and isinstance(group, tuple) and group:
            text += f": {_text_of_group(cast('tuple[object, ...]', group), depth)}"
        return text
    except Exception as inner:  # raised by the user's own exception class
        return f"whose text raises {type(inner).__name__}"


def _text_of_group(exceptions: Sequence[object], depth: int) -> str:
    texts = [
        f"{type(error).__name__}: {_text_of(error, depth - 1)}".removesuffix(": ")
        for error in exceptions[:_MOST_IN_GROUP]
        if isinstance(error, BaseException)
    ]
    return "; ".join(texts + ["…"] * (len(exceptions) > _MOST_IN_GROUP))


def shortened(text: str, limit: int) -> str:
    """Returns a text, whose middle is replaced by the number of omitted bytes if the text exceeds `limit` bytes."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    kept = max(0, limit - len(_cut(len(encoded)).encode()))
    tail = kept // 3
    head = encoded[: kept - tail].decode(errors="ignore")
    return head + _cut(len(encoded) - kept) + encoded[len(encoded) - tail :].decode(errors="ignore")


def name_text(name: str) -> str:
    """Returns a name from a peer or user, escaped and shortened for use in a message."""
    shown = printable(name[:_MAX_NAME])
    return shown if len(name) <= _MAX_NAME else f"{shown}[… {len(name) - _MAX_NAME} more …]"


def _cut(size: int) -> str:
    return f" [… {size} bytes …] "


def printable(text: str) -> str:
    """Returns a text with escaped control characters (except line feeds and tabs) and escaped surrogates."""
    carried = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], carried)


def counted(number: int, what: str, several: str = "") -> str:
    """Returns a number with its noun, such as `1 client` or `2 clients`.

    Args:
      number: The number.
      what: The singular form of the noun.
      several: The plural form; by default the singular form with an appended "s".
    """
    return f"{number} {what if number == 1 else several or f'{what}s'}"


def size_text(number: float) -> str:
    """Returns a number of bytes in a readable unit, such as `31.4 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


def with_place(error: _Error, place: str) -> _Error:
    """Returns a copy of an error with a place or advice added to its message.

    The original stays unchanged, because it may be stored as the outcome of a value and raised again.

    Args:
      error: The error.
      place: The place, such as "at client 3", or the advice.
    """
    # The source lines of the user stay at the end of the message.
    message, frames, lines = str(error).partition(_FRAMES)
    placed = type(error).__new__(type(error))  # copy() requires an __init__ that accepts the message alone
    vars(placed).update(vars(error))
    placed.args = (f"{message}; {place}{frames}{lines}", *error.args[1:])
    return placed.with_traceback(error.__traceback__)
