"""Stops processes of tests as if their machine stood still."""

import os
import signal
import time
from pathlib import Path

_WALL = 30.0


def freeze(pid: int) -> None:
    """Returns when no thread of a process gets any time any more: the signal reaches each of them at its next turn."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + _WALL
    while any(_runs(thread) for thread in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < end, "the process does not stop"
        time.sleep(0.001)


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "Tt"
    except OSError:  # the thread has ended
        return False
