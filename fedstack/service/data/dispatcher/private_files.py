"""Protects a dispatcher's files from other users, and records its last commit in a file next to the journal."""

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
    """Creates a folder and its parents. Only the owner may enter the folder, regardless of the umask.

    If the folder exists and other users may enter it, their permissions are removed, provided that the folder belongs
    to this user and contains only files of the dispatcher.

    Args:
      folder: The folder.
      is_ours: Returns whether a file name in the folder belongs to a file of the dispatcher.

    Raises:
      JournalError: If other users may enter the folder, and the folder belongs to another user or contains other files.
    """
    folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    found = folder.stat()
    if os.name != "posix" or not found.st_mode & _OTHERS:
        return
    others = [name for name in os.listdir(folder) if not is_ours(name)]
    if found.st_uid != os.geteuid() or others:
        has = f"and an unrelated file {others[0]!r}" if others else "and another owner"
        raise JournalError(
            f"Expected a work_dir that only its owner may enter, because datasets contain clients' data, found "
            f"{folder} with mode {found.st_mode & 0o7777:04o} {has}; choose a separate folder, such as "
            f"{folder / 'dispatcher'}, or run `chmod 700 {folder}`"
        )
    folder.chmod(_FOLDER)
    _logger.info("Removed the permissions of other users from %s, because it contains clients' data", folder)


def make_private_file(path: Path) -> None:
    """Creates an empty file that only its owner may open, unless the file exists.

    An existing file is not opened, because closing it would release the locks that this process holds on the file.
    """
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _FILE))


def make_files_private(folder: Path) -> None:
    """Removes the permissions of other users from all files in a folder."""
    if os.name != "posix":
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mode & _OTHERS:
                os.chmod(entry, _FILE)


def open_private(path: str, flags: int) -> int:
    """Opens a file, for use as the `opener` of `open`. Only its owner may open a newly created file."""
    return os.open(path, flags, _FILE)


_CHECK_BYTES = 4


class LastCommit:
    """The file that records the last commit.

    The file is written after each commit, but is not synced to the disk. After a power failure it may therefore record
    an earlier commit than the journal, but never a later commit.

    Args:
      path: The path of the file, which is created by the first commit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Commit | None:
        """Returns the recorded commit, or `None` if the file does not exist or does not contain a valid commit.

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
        """Records a commit. Errors are ignored, because the file only confirms the commit in the journal."""
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
