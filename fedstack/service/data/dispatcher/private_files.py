"""Protects a dispatcher's files from other users, and records its last commit in a file beside the journal."""

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
    """Makes a folder and its parents; only its owner may enter it, whatever the umask.

    A folder that exists and is open to other users is closed to them if it belongs to this user and contains only our
    files.

    Args:
      folder: The folder.
      is_ours: Returns whether a name in it is one of ours.

    Raises:
      JournalError: If other users may enter it, and closing it is not up to us.
    """
    folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    found = folder.stat()
    if os.name != "posix" or not found.st_mode & _OTHERS:
        return
    others = [name for name in os.listdir(folder) if not is_ours(name)]
    if found.st_uid != os.geteuid() or others:
        has = f"and {others[0]!r} in it" if others else "of another user"
        raise JournalError(
            f"Expected a work_dir that only its owner may enter, found {folder} with mode {found.st_mode & 0o7777:04o} "
            f"{has}: datasets contain clients' data; give a folder of its own, such as {folder / 'dispatcher'}, or "
            f"run `chmod 700 {folder}`"
        )
    folder.chmod(_FOLDER)
    _logger.info("Closed %s, which contains clients' data, to other users", folder)


def make_private_file(path: Path) -> None:
    """Makes an empty file that only its owner may open, unless it exists.

    An existing file is not opened: closing it again would release the locks that this process holds on it.
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
    """Opens a file for `open(…, opener=open_private)`; only its owner may open a new file."""
    return os.open(path, flags, _FILE)


_CHECK_BYTES = 4


class LastCommit:
    """The file with the last commit.

    It is written after each commit, but not synced: after a power failure it may lag behind, but is never ahead.

    Args:
      path: The path of the file; the first commit creates it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Commit | None:
        """Returns the recorded commit; `None` if there is none that can be read.

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
        """Records a commit. Failed writes are ignored: the journal has the commit, and this file only confirms it."""
        content = commit.SerializeToString()
        with contextlib.suppress(OSError):
            # Overwrites the previous commit, which has the same length.
            file = open_private(str(self.path), os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0))
            try:
                os.write(file, content + _check_sum(content))
            finally:
                os.close(file)

    def clear(self) -> None:
        """Discards the recorded commit.

        Raises:
          OSError: If the file cannot be removed.
        """
        self.path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<LastCommit in {self.path}>"


def _check_sum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECK_BYTES, "big")
