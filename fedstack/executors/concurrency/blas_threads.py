"""Holds BLAS to one thread per leaf thread while several leaf threads run.

Two leaf threads whose matrix products each start two BLAS threads are slower than one (measured: 129 against 176 ms).
"""

import contextlib
import functools
import threading
from collections.abc import Generator

from fedstack.foundations.after_fork import renew_after_fork


@functools.cache
def _controller():
    import threadpoolctl  # looks at every loaded library, so not before there is a second thread

    return threadpoolctl.ThreadpoolController()


class _BlasLimit:
    """The limit of this process, and who needs it."""

    def __init__(self) -> None:
        self._limiter: contextlib.AbstractContextManager[object] | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forgets the threads that are not in a forked child; the setting, which is there, the next user restores.

        It is not restored at once: BLAS may start threads for it, and most children only run another program.
        """
        self._lock = threading.Lock()
        self._users: set[object] = set()

    def add(self, user: object) -> None:
        with self._lock:
            if self._limiter is None:
                self._limiter = _controller().limit(limits=1, user_api="blas")
            self._users.add(user)

    def remove(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users and self._limiter is not None:
                self._limiter.__exit__(None, None, None)
                self._limiter = None


_limit = _BlasLimit()


@contextlib.contextmanager
def one_blas_thread() -> Generator[None, None, None]:
    """Limits BLAS to one thread for as long as anybody is inside; the last one out restores the setting."""
    user = object()
    _limit.add(user)
    try:
        yield
    finally:
        _limit.remove(user)
