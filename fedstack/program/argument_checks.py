"""Checks arguments that many parts of programs have: paths, names and state managers."""

import os
from pathlib import Path
from typing import cast

from fedstack.errors import InvalidValueError
from fedstack.foundations.value_text import describe


def checked_path(name: str, value: object, what: str = "the path of a folder") -> Path:
    """Returns an argument as an absolute path.

    Args:
      name: The name of the argument.
      value: The argument.
      what: What is expected, for messages.

    Raises:
      InvalidValueError: If it is no path, or an empty one.
    """
    text: object = os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value
    if isinstance(text, str) and text and "\0" not in text:
        return Path(text).absolute()
    raise InvalidValueError(f"Expected {what} as {name}, found {_shown(text)}; pass a string or a pathlib.Path")


def checked_name(name: str, value: object, default: str) -> str:
    """Returns an argument that names something for other people, or the default if it is `None`.

    Raises:
      InvalidValueError: If it is no string, or has characters that cannot be printed.
    """
    if value is None:
        return default
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value
    raise InvalidValueError(f"Expected a name of printable characters as {name}, found {_shown(value)}")


def check_instance(name: str, value: object, kind: type[object], advice: str) -> None:
    """Checks the class of an argument.

    Raises:
      InvalidValueError: If it is of another class.
    """
    if not isinstance(value, kind):
        raise InvalidValueError(f"Expected {kind.__name__} as {name}, found {_shown(value)}; {advice}")


def _shown(value: object) -> str:
    return repr(value[:80]) if isinstance(value, str) else describe(value)
