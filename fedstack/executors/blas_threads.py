"""Holds BLAS to one thread per leaf thread while several leaf threads run.

Two leaf threads whose matrix products each start two BLAS threads are slower than one (measured: 129 against 176 ms).
"""

import contextlib
import functools
import threading
from collections.abc import Generator

_lock = threading.Lock()
_users = 0
_limiter: contextlib.AbstractContextManager[object] | None = None


@functools.cache
def _controller():
    import threadpoolctl  # looks at every loaded library, so not before there is a second thread

    return threadpoolctl.ThreadpoolController()


@contextlib.contextmanager
def one_blas_thread() -> Generator[None, None, None]:
    """Limits BLAS to one thread for as long as anybody is inside; the last one out restores the setting."""
    global _users, _limiter
    with _lock:
        _users += 1
        if _users == 1:
            _limiter = _controller().limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _limiter is not None:
                _limiter.__exit__(None, None, None)
                _limiter = None
