"""Keeps the standard input of a server from the functions that it runs.

It is the terminal of the user who started the server, or what ties a worker to its parent. A function that reads it, or
a process that a function starts, would wait for input that never comes, and take what is not meant for it.
"""

import contextlib
import os
from collections.abc import Generator

_STANDARD_INPUT = 0


@contextlib.contextmanager
def empty_standard_input() -> Generator[int | None, None, None]:
    """Makes standard input empty inside of the block, also for processes that are started there.

    Yields:
      A descriptor of what was standard input, which no other process inherits; `None` if there was none. It is closed
      after the block.
    """
    real: int | None = None
    with contextlib.suppress(OSError):
        real = os.dup(_STANDARD_INPUT)
    empty = os.open(os.devnull, os.O_RDONLY)
    if empty == _STANDARD_INPUT:  # that was free
        os.set_inheritable(empty, True)
    else:
        os.dup2(empty, _STANDARD_INPUT)
        os.close(empty)
    try:
        yield real
    finally:
        if real is not None:
            os.dup2(real, _STANDARD_INPUT)
            os.close(real)
