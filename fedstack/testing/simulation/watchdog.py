"""Stops code that takes too long in real time. An endless loop in a simulation never exceeds a simulated time limit."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Generator

# Code that catches every error is stopped again after this time.
_AGAIN_SECONDS = 1.0


class _OutOfTimeError(BaseException):
    """Raised in a thread to stop its work. It is a `BaseException`, so that `except Exception` does not catch it."""


class Watchdog:
    """Stops a block of code that exceeds a limit of real time.

    Attributes:
      has_ended_it: Whether a block has exceeded its limit.
    """

    def __init__(self) -> None:
        self.has_ended_it = False

    @contextlib.contextmanager
    def watching(self, seconds: float, error: Callable[[], Exception]) -> Generator[None, None, None]:
        """Stops the block of the calling thread if it takes too long.

        Args:
          seconds: The limit of the block, in real seconds.
          error: Returns the error to raise if the block exceeds its limit.

        Raises:
          Exception: The result of `error`, if the block exceeds its limit.
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
                # Once `done` is set, the watcher raises nothing in this thread.
                with contextlib.suppress(_OutOfTimeError), lock:
                    _raise_in(thread, None)
                    done.set()
            watcher.join()
        if self.has_ended_it:
            raise error()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raises an error in a thread at its next bytecode; `None` withdraws an error that has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )
