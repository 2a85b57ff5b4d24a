"""Runs `fedstack serve` as a worker of a pool: `python -m fedstack.command_line.pool_worker FOLDER OPTION…`.

When the parent process ends, the worker also removes the folder of the pool, since a killed parent cannot remove it.
"""

import contextlib
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path

from fedstack._version import __version__
from fedstack.command_line import serve_command
from fedstack.command_line.command import run_command_line
from fedstack.transport.stream.dialing import SOCKET_SUFFIX

_FILES = "*.token", "*.sock", f"*.sock{SOCKET_SUFFIX}"


def main(argv: Sequence[str]) -> int:
    """Runs the server and returns the exit code. Removes the folder of the pool if the parent has ended.

    Args:
      argv: The folder of the pool, followed by options of `fedstack serve`.
    """
    folder, *options = argv
    try:
        return run_command_line([serve_command.COMMAND], __version__, ["serve", "--exit-with-parent", *options])
    finally:
        if _parent_is_gone():
            _remove(Path(folder))


def _parent_is_gone() -> bool:
    """Returns whether the parent has ended. Standard input ends with the parent, and a running parent sends no data."""
    if os.name != "posix":
        return False  # on Windows, a pipe cannot be polled, and there are no sockets to remove
    with contextlib.suppress(OSError):
        readable, _, _ = select.select([0], [], [], 0)
        return bool(readable) and not os.read(0, 1)
    return False


def _remove(folder: Path) -> None:
    """Removes the folder of a pool and the files in it. No worker needs them, since all workers end with the parent."""
    for path in [path for pattern in _FILES for path in folder.glob(pattern)]:
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
