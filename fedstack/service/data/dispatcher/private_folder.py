"""Keeps what a dispatcher writes from other users: a folder that only its owner enters, and files of the same kind."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from fedstack.errors import JournalError

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
