"""Waits for a request to stop the process, and hides standard input from functions.

A request is a signal, or the end of the parent process. Standard input is the terminal of the user who started the
server, or the pipe that connects a worker to its parent. If a function, or a process that it starts, read from standard
input, it could block forever or consume input that is meant for the server.
"""

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Generator

from fedstack.transport.peers.daemon_threads import start_daemon

PARENT_GONE = "the parent process"

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The time limit for stopping after the parent has ended, when nothing needs the results of running work.
_ORPHAN_SECONDS = 3.0
# A signal that is sent to a process group may reach a process twice; both deliveries count as one request.
_SAME_REQUEST_SECONDS = 0.5
# A signal that arrives just before a wait does not interrupt the wait: its handler runs only when the main thread
# executes Python code again. On Windows, a wait without a timeout never notices Ctrl-C.
_POLL_SECONDS = 0.25


class ShutdownRequests:
    """Waits for requests to stop the process. A second signal, at least 0.5 s later, ends the process immediately."""

    def __init__(self) -> None:
        # `SimpleQueue` is the only queue that a signal handler may use, because its `put` is reentrant.
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asked: float | None = None  # the time of the first request

    @contextlib.contextmanager
    def from_signals(self) -> Generator[None, None, None]:
        """Treats SIGTERM and SIGINT during the block as requests to stop. Must be called on the main thread."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def from_parent(self, lifeline: int | None) -> None:
        """Treats the end of the parent as a request to stop.

        Args:
          lifeline: The descriptor of the read end of a pipe, which the parent keeps open while it runs. If it is
            `None`, the parent counts as ended.
        """
        if lifeline is not None:
            lifeline = os.dup(lifeline)  # the thread reads from the copy until the process ends
        start_daemon(self._watch_parent, lifeline, name="fedstack-parent")

    def wait(self) -> str:
        """Waits for a request, and returns its source: the name of a signal, or `PARENT_GONE`."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._requests.get(timeout=_POLL_SECONDS)

    def _on_signal(self, number: int, _: object) -> None:
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
            self._requests.put(signal.Signals(number).name)
        elif now - self._asked >= _SAME_REQUEST_SECONDS:
            os._exit(128 + number)

    def _watch_parent(self, lifeline: int | None) -> None:
        # Reads without a file object: Python aborts if a thread holds the lock of a file object when the process ends.
        with contextlib.suppress(OSError):
            while lifeline is not None and os.read(lifeline, 4096):
                pass
        self._requests.put(PARENT_GONE)
        threading.Event().wait(_ORPHAN_SECONDS)
        os._exit(1)


_STANDARD_INPUT = 0


@contextlib.contextmanager
def empty_standard_input() -> Generator[int | None, None, None]:
    """Makes standard input empty during the block, including for child processes that are started in the block.

    Yields:
      A descriptor of the previous standard input, or `None` if there was none. Child processes do not inherit the
      descriptor, and it is closed after the block.
    """
    real: int | None = None
    with contextlib.suppress(OSError):
        real = os.dup(_STANDARD_INPUT)
    empty = os.open(os.devnull, os.O_RDONLY)
    if empty == _STANDARD_INPUT:  # standard input was closed, so its number was free
        os.set_inheritable(empty, True)
    else:
        os.dup2(empty, _STANDARD_INPUT)
        os.close(empty)
    try:
        yield real
    finally:
        if real is not None:
            os.dup2(real, _STANDARD_INPUT)
            os.close(real)
