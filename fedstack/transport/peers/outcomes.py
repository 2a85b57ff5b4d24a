"""Hands what comes of work from the thread that does it to those that wait for it."""

import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

_T = TypeVar("_T")


class Outcome(Generic[_T]):
    """What comes of something on another thread: told once, asked by any number of threads.

    One of `concurrent.futures` would do, with its lock and condition, of which a small call would notice the time.
    """

    def __init__(self) -> None:
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._is_told = False
        self._callbacks: deque[Callable[[Any], object]] = deque()

    def done(self) -> bool:
        """Returns whether it is known."""
        return self._is_told

    def cancelled(self) -> bool:
        """Returns whether it is known that there will be none."""
        return isinstance(self._error, concurrent.futures.CancelledError)

    def cancel(self) -> bool:
        """Asks for its end, which may take a while; returns whether it was not known yet."""
        return not self._is_told

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for it, and returns the error; `None` if there is a result. Of what was cancelled that is an error too.

        Raises:
          TimeoutError: If it takes longer than `timeout` seconds.
        """
        if not self._is_told:
            waits = threading.Lock()
            waits.acquire()
            self.add_done_callback(lambda _: waits.release())
            if not waits.acquire(timeout=-1 if timeout is None else timeout):
                raise concurrent.futures.TimeoutError
        return self._error

    def result(self, timeout: float | None = None) -> _T:
        """Waits for it, and returns the result.

        Raises:
          Exception: If there is none.
          TimeoutError: If it takes longer than `timeout` seconds.
        """
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # which has this frame
        return cast(_T, self._result)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Calls something when it is known, on the thread that tells it, or at once; it must not raise."""
        self._callbacks.append(callback)
        if self._is_told:
            self._call_all()

    def tell(self, result: _T | None, error: BaseException | None) -> None:
        """Says what it is; called once."""
        self._result, self._error, self._is_told = result, error, True
        self._call_all()

    def _call_all(self) -> None:
        with contextlib.suppress(IndexError):  # two threads may be here, and each callback is taken by one of them
            while self._callbacks:
                self._callbacks.popleft()(self)
