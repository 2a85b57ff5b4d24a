"""Makes sure that one run at a time writes to a folder."""

import json
import os
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import IO, Any

import attrs

from fedstack.errors import ClosedError, ProgramStateError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import text_of

LOCK = ".run"
_LOOK_SECONDS = 0.5


@attrs.frozen
class LockHolder:
    """Who has the lock of a folder.

    Attributes:
      name: The name of the run.
      host: The name of its machine.
      pid: The id of its process.
      since: When it took the lock, in seconds since the epoch.
    """

    name: str
    host: str
    pid: int
    since: float

    def __str__(self) -> str:
        here = self.host == socket.gethostname() and self.pid == os.getpid()
        return f"the run {self.name!r} of {'this process' if here else f'process {self.pid} on {self.host}'}"


def holder_of(folder: Path) -> LockHolder | None:
    """Returns who has the lock of a folder, or `None` if nobody has it. On Windows, this is not known.

    Raises:
      OSError: If the lock cannot be read.
    """
    try:
        file = open(folder / LOCK, "rb", buffering=0)  # noqa: SIM115
    except FileNotFoundError:
        return None
    with file:
        return None if _locked(file, shared=True) else _read(file) or LockHolder("?", "?", 0, 0.0)


class FolderLock:
    """The lock of a folder. The system releases it when the process ends, however it ends.

    Forked children do not have it: they cannot take it again, and do not keep it when the process has ended.

    Args:
      folder: The folder.
      name: The name of the run, which another run is told.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / LOCK
        self._name = name
        self._file: IO[bytes] | None = None
        self._is_released = False
        self._process: int | None = None  # that has taken it
        self._thread_lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """Closes the file of the lock in a forked child; see `Renewable`. The lock stays with the parent."""
        self._thread_lock = threading.Lock()
        if self._file is not None:
            self._file.close()
            self._file = None

    def acquire(self) -> bool:
        """Takes the lock, and returns whether it was not taken before. Creates the folder if it does not exist.

        Raises:
          ProgramStateError: If another run has the lock, a parent of this process took it, or the folder cannot be
            created or written to.
          ClosedError: If the lock has been released.
        """
        with self._thread_lock:
            if self._process is not None and self._process != os.getpid():
                raise ProgramStateError(
                    f"Expected process {self._process}, which opened the run in {self._path.parent}, found process "
                    f"{os.getpid()}, a forked child; save in the first process, or open the run in the child alone"
                )
            if self._is_released:  # another run may have written to the folder since
                raise ClosedError(
                    f"Expected an open run in {self._path.parent}, found that it has been closed; open it again, and "
                    "load its latest state"
                )
            if self._file is not None:
                return False
            folder = self._path.parent
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ProgramStateError(
                    f"Cannot create {folder}: {text_of(error)}; choose a folder that may be written to"
                ) from error
            try:
                file = open(self._path, "a+b", buffering=0)  # noqa: SIM115
            except OSError as error:
                raise ProgramStateError(
                    f"Cannot write to {folder}: {text_of(error)}; allow it, or choose another folder"
                ) from error
            # Who looks for the holder of the lock has it for a moment.
            if not any(_locked(file) for _ in Deadline(_LOOK_SECONDS).attempts_blocking(iter(lambda: 0.01, None))):
                found = _read(file)
                file.close()
                raise ProgramStateError(
                    f"Expected one run in {folder}, found that {found or 'another run'} uses it; wait until "
                    "it ends, end it, or choose another folder"
                )
            self._file, self._process = file, os.getpid()
            weakref.finalize(self, file.close)
            file.truncate(0)
            facts = {"name": self._name, "host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
            file.write(json.dumps(facts).encode())
            return True

    def release(self) -> None:
        """Releases the lock for good. Idempotent."""
        with self._thread_lock:
            self._is_released = True
            if self._file is not None:
                self._file.close()
                self._file = None

    def __repr__(self) -> str:
        return f"<FolderLock of {self._path.parent}, {'released' if self._file is None else 'taken'}>"


def _locked(file: IO[bytes], *, shared: bool = False) -> bool:
    """Locks a file for this process and returns whether this was possible; always true on Windows."""
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(file.fileno(), (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: IO[bytes]) -> LockHolder | None:
    """Returns who has the lock, or `None` if it has not said so yet."""
    file.seek(0)
    try:
        facts: Any = json.loads(file.read())
        return LockHolder(str(facts["name"]), str(facts["host"]), int(facts["pid"]), float(facts["since"]))
    except (ValueError, KeyError, TypeError):
        return None
