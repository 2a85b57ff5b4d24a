"""Ends what takes too long in real time: code that goes round in circles, whose clock is simulated, never would."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Generator

# Code that catches everything is stopped again after so long.
_AGAIN_SECONDS = 1.0


class _OutOfTimeError(BaseException):
    """Ends what a thread does, also where that catches every `Exception`."""


class Watchdog:
    """Watches what one thread does.

    Attributes:
      has_ended_it: Whether the time was up.
    """

    def __init__(self) -> None:
        self.has_ended_it = False

    @contextlib.contextmanager
    def watching(self, seconds: float, error: Callable[[], Exception]) -> Generator[None, None, None]:
        """Ends a block of the calling thread that takes too long.

        Args:
          seconds: How long it may take, in real seconds.
          error: Makes what is raised then.
        """
        thread, done, lock = threading.get_ident(), threading.Event(), threading.Lock()

        def watch() -> None:
            until = time.monotonic() + seconds
            while not done.wait(max(0.0, until - time.monotonic())):
                with lock:
                    if not done.is_set():
                        self.has_ended_it = True
                        _raise_in(thread, _OutOfTimeError)
                until = time.monotonic() + _AGAIN_SECONDS

        watcher = threading.Thread(target=watch, name="fedstack-watchdog", daemon=True)
        watcher.start()
        try:
            yield
        except _OutOfTimeError:
            pass
        finally:
            while not done.is_set():
                with contextlib.suppress(_OutOfTimeError), lock:  # from here on nothing is raised in this thread
                    _raise_in(thread, None)
                    done.set()
            watcher.join()
        if self.has_ended_it:
            raise error()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raises an error in a thread at its next step; `None` takes one back that has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )
