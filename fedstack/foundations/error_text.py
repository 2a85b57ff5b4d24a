"""Makes texts of others fit for messages: not too long, and nothing in them that a terminal would obey."""

import re
from collections.abc import Sequence
from typing import cast

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


# About as much comes from a worker.
_MAX_TEXT_BYTES = 4096
_MAX_NAME = 200
# Of exceptions that have others in them, as many are told, and as deep.
_MOST_IN_GROUP = 10
_DEEPEST_GROUP = 3


def text_of(error: BaseException) -> str:
    """Returns the text of an exception of the user's, with its notes and those in a group, fit for a message."""
    return shortened(printable(_text_of(error, _DEEPEST_GROUP)), _MAX_TEXT_BYTES)


def _text_of(error: BaseException, depth: int) -> str:
    try:
        text = str(error)
        notes: object = getattr(error, "__notes__", None)  # from Python 3.11 on, as groups are
        if isinstance(notes, list) and notes:
            text += f" ({'; '.join(map(str, cast('list[object]', notes)))})"
        group: object = getattr(error, "exceptions", None)
        if depth and isinstance(group, tuple) and group:
            text += f": {_text_of_group(cast('tuple[object, ...]', group), depth)}"
        return text
    except Exception as inner:  # of the user's own exception class
        return f"whose text raises {type(inner).__name__}"


def _text_of_group(exceptions: Sequence[object], depth: int) -> str:
    told = [
        f"{type(error).__name__}: {_text_of(error, depth - 1)}".removesuffix(": ")
        for error in exceptions[:_MOST_IN_GROUP]
        if isinstance(error, BaseException)
    ]
    return "; ".join(told + ["…"] * (len(exceptions) > _MOST_IN_GROUP))


def shortened(text: str, limit: int) -> str:
    """Takes out the middle of a text that has more than `limit` bytes: what it begins and ends with says most.

    In its place is how many bytes are missing.
    """
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    kept = max(0, limit - len(_cut(len(encoded)).encode()))
    tail = kept // 3
    head = encoded[: kept - tail].decode(errors="ignore")
    return head + _cut(len(encoded) - kept) + encoded[len(encoded) - tail :].decode(errors="ignore")


def name_text(name: str) -> str:
    """Returns a name of somebody else's for a message: it may have any length."""
    shown = printable(name[:_MAX_NAME])
    return shown if len(name) <= _MAX_NAME else f"{shown}[… {len(name) - _MAX_NAME} more …]"


def _cut(size: int) -> str:
    return f" [… {size} bytes …] "


def printable(text: str) -> str:
    """Writes control characters as Python does, all but line feeds and tabs, and what UTF-8 cannot carry, too."""
    carried = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], carried)


def counted(number: int, what: str, several: str = "") -> str:
    """Writes a number of things: `1 client`, `2 clients`.

    Args:
      number: How many there are.
      what: What one of them is called.
      several: What several are called; by default that with an s.
    """
    return f"{number} {what if number == 1 else several or f'{what}s'}"


def size_text(number: float) -> str:
    """Writes a number of bytes for people: `31.4 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"
