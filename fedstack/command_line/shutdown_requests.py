"""Waits for a request to end the process, and keeps standard input, which may carry one, from functions.

A request is a signal, or the end of the process that started this one. Standard input is the terminal of the user who
started the server, or the pipe that ties a worker to its parent. A function that reads it, or a process that a function
starts, would wait for input that never comes, and take input that is not meant for it.
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
# How long a server without a parent may take to stop; the results of its work are of no use.
_ORPHAN_SECONDS = 3.0
# A signal to a group of processes may reach each of them twice: that is one request.
_SAME_REQUEST_SECONDS = 0.5
# A signal just before a wait does not end the wait: its handler runs when Python has the thread again. On Windows, a
# wait without a timeout never notices Ctrl-C.
_POLL_SECONDS = 0.25


class ShutdownRequests:
    """Waits for requests to stop; a second request, half a second later or more, ends the process at once."""

    def __init__(self) -> None:
        # The only queue that a signal handler may use, whatever code it interrupts.
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asked: float | None = None  # the time of the first request

    @contextlib.contextmanager
    def from_signals(self) -> Generator[None, None, None]:
        """Treats SIGTERM and SIGINT as requests during the block; for the main thread."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def from_parent(self, lifeline: int | None) -> None:
        """Treats the end of a pipe as a request: the parent holds the other end until it ends.

        Args:
          lifeline: The descriptor of this end; without one, the parent counts as ended.
        """
        if lifeline is not None:
            lifeline = os.dup(lifeline)  # the thread waits until the process ends
        start_daemon(self._watch_parent, lifeline, name="fedstack-parent")

    def wait(self) -> str:
        """Waits for a request, and returns its source."""
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
        # Without a file object: if a thread holds its lock when the process ends, Python aborts.
        with contextlib.suppress(OSError):
            while lifeline is not None and os.read(lifeline, 4096):
                pass
        self._requests.put(PARENT_GONE)
        threading.Event().wait(_ORPHAN_SECONDS)
        os._exit(1)


_STANDARD_INPUT = 0


@contextlib.contextmanager
def empty_standard_input() -> Generator[int | None, None, None]:
    """Makes standard input empty during the block, also for processes that are started there.

    Yields:
      A descriptor of what was standard input, which no other process inherits; `None` if there was none. It is closed
      after the block.
    """
    real: int | None = None
    with contextlib.suppress(OSError):
        real = os.dup(_STANDARD_INPUT)
    empty = os.open(os.devnull, os.O_RDONLY)
    if empty == _STANDARD_INPUT:  # the number was free
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
