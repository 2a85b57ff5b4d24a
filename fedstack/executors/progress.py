"""Counts clients done, running and failed, for whoever wants to show it."""

import contextvars
import threading
from typing import Protocol


class ProgressListener(Protocol):
    """Hears how far an invocation is. Called from leaf threads; it must be quick. If it raises, that ends it."""

    def changed(self, counts: "ProgressCounts") -> None:
        """Called after each block of clients."""
        ...


class ProgressCounts:
    """How many clients of an invocation are done, running and failed, over all its phases so far."""

    def __init__(self, listener: ProgressListener | None = None) -> None:
        self.total = 0
        self.done = 0
        self.running = 0
        self.failures = 0
        self._listener = listener
        self._lock = threading.Lock()

    def expect(self, clients: int) -> None:
        """Adds the clients of a phase that begins."""
        self._change(total=clients)

    def started(self, clients: int) -> None:
        """Notes that clients have begun."""
        self._change(running=clients)

    def finished(self, clients: int) -> None:
        """Notes that clients are done."""
        self._change(running=-clients, done=clients)

    def failed(self, clients: int) -> None:
        """Notes that a block of clients failed."""
        self._change(running=-clients, failures=clients)

    def _change(self, total: int = 0, done: int = 0, running: int = 0, failures: int = 0) -> None:
        with self._lock:
            self.total += total
            self.done += done
            self.running += running
            self.failures += failures
        if self._listener is not None:
            self._listener.changed(self)

    def __repr__(self) -> str:
        return f"<ProgressCounts {self.done} done, {self.running} running, {self.failures} failed of {self.total}>"


current_progress: contextvars.ContextVar[ProgressCounts | None] = contextvars.ContextVar(
    "current_progress", default=None
)
