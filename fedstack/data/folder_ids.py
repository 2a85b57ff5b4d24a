"""Ids of folders, each in a file."""

import re
import secrets
from pathlib import Path

from fedstack.data.headed_file import opened_at_once, write_whole

_ID = re.compile(rb"[0-9a-f]{32}\n")


def read_id(path: Path) -> str | None:
    """Returns the id in a file; `None` if there is none."""
    try:
        with open(path, "rb", buffering=0, opener=opened_at_once) as file:
            found = file.read(64)
    except OSError:
        return None
    return found[:-1].decode() if _ID.fullmatch(found) else None


def write_id(path: Path, found: str | None = None) -> str:
    """Writes an id to a file, which a crash leaves as it was or as it is then, and returns it.

    Args:
      path: The path of the file.
      found: The id; `None` to draw one.

    Raises:
      ProgramStateError: If it cannot be written.
    """
    found = found or secrets.token_hex(16)
    write_whole(path, [found.encode() + b"\n"])
    return found
