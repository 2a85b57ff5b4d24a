"""Keeps what a dispatcher writes from other users, and its last commit in a file beside the journal."""

import contextlib
import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from fedstack.errors import JournalError
from fedstack.proto.data_service_pb2 import Commit

_logger = logging.getLogger(__name__)
_FOLDER, _FILE, _OTHERS = 0o700, 0o600, 0o077


def make_private_folder(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Makes a folder that only its owner enters, whatever the umask, with its parents.

    One that is there already and lets others in is closed to them if it is this user's and has nothing but our files.

    Args:
      folder: The folder.
      is_ours: Returns whether a name in it is one of ours.

    Raises:
      JournalError: If others may enter it, and that is not for us to change.
    """
    folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    found = folder.stat()
    if os.name != "posix" or not found.st_mode & _OTHERS:
        return
    others = [name for name in os.listdir(folder) if not is_ours(name)]
    if found.st_uid != os.geteuid() or others:
        has = f"and {others[0]!r} in it" if others else "of another user"
        raise JournalError(
            f"Expected a work_dir that only its owner enters, found {folder} with mode {found.st_mode & 0o7777:04o} "
            f"{has}: datasets have clients' data; give a folder of its own, such as {folder / 'dispatcher'}, or "
            f"run `chmod 700 {folder}`"
        )
    folder.chmod(_FOLDER)
    _logger.info("Closed %s, which has clients' data, to other users", folder)


def make_private_file(path: Path) -> None:
    """Makes an empty file that only its owner opens, if there is none.

    It is not opened where it is there: to close it again would end the locks that this process has on it.
    """
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _FILE))


def make_files_private(folder: Path) -> None:
    """Closes all files in a folder to other users."""
    if os.name != "posix":
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mode & _OTHERS:
                os.chmod(entry, _FILE)


def open_private(path: str, flags: int) -> int:
    """Opens a file for `open(…, opener=open_private)`; a new one is its owner's only."""
    return os.open(path, flags, _FILE)


_CHECK_BYTES = 4


class LastCommit:
    """The file. It is written after each commit, and not synced: after a loss of power it may be behind, never ahead.

    Args:
      path: Where it is; it is made with the first commit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Commit | None:
        """Returns what was noted; `None` if there is nothing that can be read.

        Raises:
          OSError: If the file cannot be opened.
        """
        try:
            found = self.path.read_bytes()
        except FileNotFoundError:
            return None
        content, check_sum = found[:-_CHECK_BYTES], found[-_CHECK_BYTES:]
        if not content or check_sum != _check_sum(content):
            return None
        try:
            return Commit.FromString(content)
        except DecodeError:
            return None

    def write(self, commit: Commit) -> None:
        """Notes a commit. What cannot be written is left out: the journal has it, and this is a second look at it."""
        content = commit.SerializeToString()
        with contextlib.suppress(OSError):
            # In place of what is there, which is as long.
            file = open_private(str(self.path), os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0))
            try:
                os.write(file, content + _check_sum(content))
            finally:
                os.close(file)

    def clear(self) -> None:
        """Notes that nothing is known.

        Raises:
          OSError: If the file cannot be removed.
        """
        self.path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<LastCommit in {self.path}>"


def _check_sum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECK_BYTES, "big")
