"""Lets functions of C++ libraries return before the process ends.

When a process ends, Python ends each daemon thread as soon as it needs the interpreter lock, by unwinding its stack. If
that happens below a function of a C++ library such as PyTorch or XLA, the library aborts the whole process, which then
has another exit status.
"""

import atexit
import contextlib
import itertools
import logging
import os
import sys
import threading
from types import FrameType

from fedstack.executors.concurrency.thread_pool import THREAD_NAME, ThreadPool, open_pools
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.foundations.traceback_filter import is_of_user
from fedstack.observe.observers import observers

_logger = logging.getLogger(__name__)
_LIBRARIES = ("torch", "jaxlib")
_MOST_SECONDS = 10.0
_SILENT_SECONDS = 1.0
_POLL_SECONDS = 0.01


def _can_abort() -> bool:
    """Returns whether a function that runs may be one of a C++ library."""
    return any(library in sys.modules for library in _LIBRARIES)


def _at_work() -> tuple[int, int]:
    """Returns how many threads run functions of users, or what is around them, and how many wait with a job of ours."""
    ours = {thread.ident for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)}
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - it is documented
    try:
        busy = [frame for thread, frame in frames.items() if thread in ours and ThreadPool.has_job(frame)]
        running = sum(map(_runs_function, busy))
        return running, len(busy) - running
    finally:
        del frames  # breaks a reference cycle: this frame is among them


def _runs_function(frame: FrameType) -> bool:
    """Returns whether a thread with a job may be in a library's function, or may call one, if only to free its result.

    Compiled functions have no frames of users.
    """
    if frame.f_code.co_filename != threading.__file__:
        return True
    inner: FrameType | None = frame
    while inner is not None and not is_of_user(inner):
        inner = inner.f_back
    return inner is not None


@atexit.register
def wait_for_functions() -> None:
    """Waits until no function runs, if that can abort the process, for at most ten seconds. Ctrl-C ends the wait."""
    if not _can_abort():
        return
    for pool in open_pools():
        pool.drop_jobs()
    silent, is_told, was_quiet = Deadline(_SILENT_SECONDS), False, False
    with contextlib.suppress(KeyboardInterrupt):
        for _ in Deadline(_MOST_SECONDS).attempts_blocking(itertools.repeat(_POLL_SECONDS)):
            running, waiting = _at_work()
            # One that waits may have been woken already, and then frees what libraries have returned.
            if not running and (was_quiet or not waiting):
                return
            was_quiet = not running
            if running and silent.is_over and not is_told:
                is_told = True
                _logger.warning(
                    "Waiting for %s of clients to return before the process ends, at most %g s; Ctrl-C ends it at once",
                    *(counted(running, "function"), _MOST_SECONDS),
                )


def end_at_once() -> None:
    """Lets this process end without the wait, for servers, which have waited before. They end with status 0."""
    atexit.unregister(wait_for_functions)
    atexit.register(_end_beside_functions)


def _end_beside_functions() -> None:
    """Ends this process if functions still run, before Python ends their threads."""
    if not _can_abort():
        return
    for _ in Deadline(_SILENT_SECONDS).attempts_blocking([_POLL_SECONDS]):  # in which those that were woken go on
        running, waiting = _at_work()
        if running:
            observers.flush()  # which the exit handler that is left would do
            logging.shutdown()
            os._exit(0)
        if not waiting:
            return
