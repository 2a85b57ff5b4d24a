"""Adds lines of code to tracebacks of other processes, which have the functions of a notebook but not its cells."""

import linecache
import re
import sys

_FRAME = re.compile(r'  File "(.+)", line (\d{1,9}), in .*')


def with_source_lines(text: str) -> str:
    """Returns the text of a traceback with the lines that it lacks, as far as only this process has them.

    These are the lines of notebook cells and of the program itself. Other files are not read: who wrote the text may
    not be trusted, and it may be passed on.

    Args:
      text: A traceback as Python prints it, or a message that ends in one.
    """
    lines = text.split("\n")
    made: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""]):
        made.append(line)
        frame = _FRAME.fullmatch(line)
        if frame is not None and not following.startswith("    "):
            source = _line(frame[1], int(frame[2]))
            made += [f"    {source}"] if source else []
    return "\n".join(made)


def _line(filename: str, number: int) -> str:
    """Returns a line of a cell or of the program; nothing if there is none."""
    entry = linecache.cache.get(filename)
    is_cell = entry is not None and len(entry) == 4 and entry[1] is None  # of no file, so that it has no time of change
    if is_cell or filename == getattr(sys.modules.get("__main__"), "__file__", None):
        return linecache.getline(filename, number).strip()
    return ""
