"""Counts clients done, running and failed, and knows what runs, for whoever wants to show it."""

import heapq
import threading
import weakref
from collections.abc import Iterable
from typing import Protocol

from fedstack.computations.plan.program import Program
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.caches import made_once
from fedstack.observe.events import NO_SPAN, ClientsChanged, Span
from fedstack.observe.observers import observers
from fedstack.transport.wire.frames import RunningClients

_MOST_WORK = 8
_MOST_NAMES = 4
_MAX_NAME = 100


class ReportsWork(Protocol):
    """Does work of an invocation, and can tell what it is at."""

    def work(self) -> Iterable[RunningClients]:
        """Returns what runs now; called from any thread."""
        ...


class ProgressListener(Protocol):
    """Hears how far an invocation is. Called from leaf threads; it must be quick. One that raises is detached."""

    def changed(self, counts: "ProgressCounts") -> None:
        """Called after each block of clients."""
        ...


class ProgressCounts:
    """How many clients of an invocation are done, running and failed, over all its phases so far, and what runs."""

    def __init__(self, listener: ProgressListener | None = None) -> None:
        self.total = 0
        self.done = 0
        self.running = 0
        self.failures = 0
        self._listener = listener
        self._lock = threading.Lock()
        # Each is here for as long as it works, and that may be longer than anybody waits for it.
        self._workers: weakref.WeakSet[ReportsWork] = weakref.WeakSet()
        renew_after_fork(self)

    def renew(self) -> None:
        """Counts on for nobody: in a child that is forked inside of a leaf function, the listener is its parent's."""
        self._lock = threading.Lock()
        self._listener = None
        self._workers = weakref.WeakSet()

    def expect(self, clients: int) -> None:
        """Adds the clients of a phase that begins."""
        self._change(total=clients)

    def started(self, clients: int) -> None:
        """Notes that clients have begun."""
        self._change(running=clients)

    def finished(self, clients: int) -> None:
        """Notes that clients are done."""
        self._change(running=-clients, done=clients)

    def failed(self, clients: int, given_up: int = 0) -> None:
        """Notes that clients failed, and that others which had begun were given up."""
        self._change(running=-clients - given_up, failures=clients, given_up=given_up)

    def restart(self) -> None:
        """Forgets an attempt that failed: all of it is done again."""
        with self._lock:
            self.total = self.done = self.running = self.failures = 0
            self._workers.clear()
        if self._listener is not None:
            self._listener.changed(self)

    def watch(self, worker: ReportsWork) -> None:
        """Takes note of who works for the invocation."""
        with self._lock:
            self._workers.add(worker)

    def work(self) -> list[RunningClients]:
        """Returns what runs, the longest first; not all of it if there is much."""
        with self._lock:
            workers = list(self._workers)
        found = [work for worker in workers for work in worker.work()]
        return heapq.nlargest(_MOST_WORK, found, key=lambda work: work.seconds)

    def _change(self, total: int = 0, done: int = 0, running: int = 0, failures: int = 0, given_up: int = 0) -> None:
        with self._lock:
            self.total += total
            self.done += done
            self.running += running
            self.failures += failures
        if self._listener is not None:
            self._listener.changed(self)

    def __repr__(self) -> str:
        return f"<ProgressCounts {self.done} done, {self.running} running, {self.failures} failed of {self.total}>"


class ToldCounts(ProgressCounts):
    """Counts of which observers are told.

    Attributes:
      span: Where in a call these clients are.
    """

    def __init__(self, span: Span = NO_SPAN) -> None:
        super().__init__()
        self.span = span

    def _change(self, total: int = 0, done: int = 0, running: int = 0, failures: int = 0, given_up: int = 0) -> None:
        super()._change(total, done, running, failures, given_up)
        if observers.present:
            observers.tell(
                ClientsChanged(
                    **self.span.ids,
                    expected=total,
                    started=max(running, 0),
                    done=done,
                    failed=failures,
                    given_up=given_up,
                )
            )


@made_once
def name_of(program: Program) -> str:
    """Returns the names of the functions in a program, in the order in which they run."""
    names = dict.fromkeys(step.operation.name[:_MAX_NAME] for step in program.steps)
    shown = list(names)[:_MOST_NAMES]
    return ", ".join(shown + ["…"] * (len(names) > len(shown)))
