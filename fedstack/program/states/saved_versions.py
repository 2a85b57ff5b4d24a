"""Finds the versions of a program's state, and works with their files beside the event loop."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedstack.errors import ProgramStateError
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.foundations.error_text import text_of

PREFIX = "program_state_"
_T = TypeVar("_T")


def versions_in(folder: Path, prefix: str = PREFIX) -> list[int]:
    """Returns the versions that are saved in a folder, in order.

    Raises:
      ProgramStateError: If the folder cannot be read.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ProgramStateError(f"Cannot read {folder}: {text_of(error)}; check the path") from error
    ends = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    return sorted(int(end) for end in ends if end.isascii() and end.isdecimal())


def running_task() -> "asyncio.Task[Any] | None":
    """Returns the task that runs now, if there is one."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs yet
        return None


async def in_thread(work: Callable[[], _T]) -> _T:
    """Runs work that waits for the disk. It runs to its end even if the caller is cancelled meanwhile."""
    return await asyncio.shield(off_loop(work))
