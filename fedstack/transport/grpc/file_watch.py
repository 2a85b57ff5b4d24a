"""Reads again what was read from files, when they have changed."""

import copy
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from fedstack.errors import InvalidValueError
from fedstack.foundations.after_fork import renew_after_fork

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_Signature: TypeAlias = tuple[tuple[int, int, int], ...]


class FileWatch:
    """Files as they were when this was made.

    A file that is gone has not changed: whoever replaces one may take it away first, and a secret may be read once and
    then deleted.

    Args:
      files: Their paths.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]]) -> None:
        self.files = tuple(os.path.abspath(file) for file in files)
        self._seen = self._signature()

    def has_changed(self) -> bool:
        """Tells whether one of them is another one than at the last time."""
        now = self._signature()
        if now is None or now == self._seen:
            return False
        self._seen = now
        return True

    def _signature(self) -> _Signature | None:
        try:
            found = [os.stat(file) for file in self.files]
        except OSError:
            return None
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)


class Renewed(Generic[_T]):
    """A value that was read from files, and is read again when they change. It may be asked for from any thread.

    Args:
      value: What was read.
      watch: The files, from before they were read; `None` for a value that stays.
      read: Reads it again.
      run: Runs what tells of it: logging on a thread that is not of Python makes an object for the thread, for good.
      clock: Tells the time in seconds.
    """

    def __init__(
        self,
        value: _T,
        watch: FileWatch | None,
        read: Callable[[], _T],
        run: Callable[[Callable[[], None]], object] = lambda tell: tell(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._value = value
        self._watch = copy.copy(watch)  # others who keep a value of the same files find out for themselves
        self._read = read
        self._run = run
        self._clock = clock
        self._next_look = clock()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begins with a lock that no thread holds."""
        self._lock = threading.Lock()

    def get(self) -> _T:
        """Returns the value. At most once a second it looks at the files; of what is no good there it warns, once."""
        if self._watch is None or self._clock() < self._next_look:
            return self._value
        with self._lock:
            self._next_look = self._clock() + _LOOK_SECONDS
            if self._watch.has_changed():
                self._renew(", ".join(self._watch.files))
            return self._value

    def _renew(self, names: str) -> None:
        try:
            self._value = self._read()
        except InvalidValueError as error:
            words = str(error)
            self._run(lambda: _logger.warning("Going on with what was in %s before: %s", names, words))
        else:
            self._run(lambda: _logger.info("Read %s again", names))
