"""Makes texts of others fit for messages: not too long, and nothing in them that a terminal would obey."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


# About as much comes from a worker.
_MAX_TEXT_BYTES = 4096


def text_of(error: BaseException) -> str:
    """Returns the text of an exception of the user's, fit for a message."""
    try:
        text = str(error)
    except Exception as inner:  # of the user's own exception class
        text = f"whose text raises {type(inner).__name__}"
    return shortened(printable(text), _MAX_TEXT_BYTES)


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


def _cut(size: int) -> str:
    return f" [… {size} bytes …] "


def printable(text: str) -> str:
    """Writes control characters as Python does, all but line feeds and tabs, and what UTF-8 cannot carry, too."""
    carried = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], carried)
