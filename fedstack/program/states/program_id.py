"""The id of the states of a program, which tells them from those of other programs."""

import threading
from collections.abc import Callable
from pathlib import Path

from fedstack.data.folder_ids import read_id, write_id


class ProgramId:
    """The id of the states of a program, in a hidden file of their folder, so that copies of it keep the id.

    Args:
      path: The path of the file.
      take: Takes the folder for this process.
    """

    def __init__(self, path: Path, take: Callable[[], object]) -> None:
        self._path = path
        self._take = take
        self._lock = threading.Lock()

    def read(self) -> str | None:
        """Returns the id; `None` if there is none yet."""
        return read_id(self._path)

    def drawn(self) -> str:
        """Returns the id, and draws it if there is none yet.

        Raises:
          ProgramStateError: If another run uses the folder, or the id cannot be written.
        """
        self._take()
        with self._lock:
            return self.read() or write_id(self._path)
