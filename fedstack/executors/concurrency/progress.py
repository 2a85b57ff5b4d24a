"""Counts the clients of an invocation, knows what runs, and emits the events of its phases.

`ProgressCounts` belongs to an invocation. A `PhaseReport` feeds it with the heartbeats of a worker, and
`observed_phase` emits the events of a phase.
"""

import contextlib
import heapq
import threading
import time
import weakref
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

import attrs

from fedstack.computations.leaves.work_scope import ClientCounter, current_scope
from fedstack.computations.plan.program import Program
from fedstack.errors import FedstackError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.caches import made_once
from fedstack.observe.events import NO_SPAN, ClientsChanged, Folded, PhaseEnded, PhaseStarted, Span
from fedstack.observe.observers import observers
from fedstack.transport.wire.frames import Heartbeat, RunningClients

_MOST_WORK = 8
_MOST_NAMES = 4
_MAX_NAME = 100


class ReportsWork(Protocol):
    """Does work of an invocation and reports what runs."""

    def work(self) -> Iterable[RunningClients]:
        """Returns what runs now; called from any thread."""
        ...


class ProgressListener(Protocol):
    """Receives the progress of an invocation, on leaf threads; it must be quick. A listener that raises is detached."""

    def changed(self, counts: "ProgressCounts") -> None:
        """Called after each block of clients."""
        ...


class ProgressCounts:
    """The numbers of clients of an invocation that are done, running and failed, over all its phases so far."""

    def __init__(self, listener: ProgressListener | None = None) -> None:
        self.total = 0
        self.done = 0
        self.running = 0
        self.failures = 0
        self._listener = listener
        self._lock = threading.Lock()
        # Each is in here while it works, which may be longer than its caller waits.
        self._workers: weakref.WeakSet[ReportsWork] = weakref.WeakSet()
        renew_after_fork(self)

    def renew(self) -> None:
        """Detaches the listener in a forked child; it belongs to the parent."""
        self._lock = threading.Lock()
        self._listener = None
        self._workers = weakref.WeakSet()

    def expect(self, clients: int) -> None:
        """Adds the clients of a phase that begins."""
        self._change(total=clients)

    def started(self, clients: int) -> None:
        """Counts clients that have begun."""
        self._change(running=clients)

    def finished(self, clients: int) -> None:
        """Counts clients that are done."""
        self._change(running=-clients, done=clients)

    def failed(self, clients: int, given_up: int = 0) -> None:
        """Counts clients that failed, and others that had begun and were given up."""
        self._change(running=-clients - given_up, failures=clients, given_up=given_up)

    def restart(self) -> None:
        """Forgets a failed attempt, which is repeated as a whole."""
        with self._lock:
            self.total = self.done = self.running = self.failures = 0
            self._workers.clear()
        if self._listener is not None:
            self._listener.changed(self)

    def watch(self, worker: ReportsWork) -> None:
        """Adds what works for the invocation, held weakly."""
        with self._lock:
            self._workers.add(worker)

    def work(self) -> list[RunningClients]:
        """Returns the work that has run for longest, longest first."""
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


class ObservedCounts(ProgressCounts):
    """Counts that observers see as events.

    Attributes:
      span: The part of a call that these clients belong to.
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


# The most running clients that are kept of a heartbeat.
_MOST_RUNNING = 1000


class PhaseReport:
    """The progress of a phase at a worker, passed on to the invocation's progress while the block runs.

    Reports are corrected to what is possible: no client ends twice, or before it begins.

    Args:
      progress: The progress of the invocation, if it is counted.
      clients: The number of clients of the phase at this worker.

    Attributes:
      running: The clients that ran when the worker last named some, up to a limit.
    """

    def __init__(self, progress: ClientCounter | None, clients: int) -> None:
        self._progress = progress
        self._clients = clients
        self._begun = self._done = self._failed = 0
        self._work: tuple[RunningClients, ...] = ()
        self._heard = 0.0
        self.running: list[int] = []

    def __enter__(self) -> "PhaseReport":
        if self._progress is not None:
            self._progress.expect(self._clients)
            self._progress.watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._work = ()
        if kind is None:
            self._reach(self._clients, self._clients - self._failed, self._failed)
        else:
            # The worker's last report may be some time ago.
            failed = max(self._failed, int(isinstance(error, FedstackError) and error.client_index is not None))
            begun = max(self._begun, self._done + failed)
            self._reach(begun, self._done, failed, begun - self._done - failed)

    def heard(self, beat: Heartbeat) -> None:
        """Handles a heartbeat."""
        self._work, self._heard = beat.work, time.monotonic()
        if any(work.clients for work in beat.work):
            starts = [(work.first_client, min(work.clients, _MOST_RUNNING)) for work in beat.work]
            self.running = [client for start, count in starts for client in range(start, start + count)][:_MOST_RUNNING]
        begun = min(max(self._begun, beat.done + beat.running + beat.failed), self._clients)
        done = min(max(self._done, beat.done), begun - self._failed)
        self._reach(begun, done, min(max(self._failed, beat.failed), begun - done))

    def work(self) -> list[RunningClients]:
        """Returns what ran at the last heartbeat; a change brings the next heartbeat soon."""
        since = time.monotonic() - self._heard
        return [attrs.evolve(work, seconds=work.seconds + since) for work in self._work]

    def _reach(self, begun: int, done: int, failed: int, given_up: int = 0) -> None:
        started, finished, lost = begun - self._begun, done - self._done, failed - self._failed
        self._begun, self._done, self._failed = begun, done, failed
        if self._progress is None:
            return
        if started:
            self._progress.started(started)
        if finished:
            self._progress.finished(finished)
        if lost or given_up:
            self._progress.failed(lost, given_up)

    def __repr__(self) -> str:
        return f"<PhaseReport {self._done} of {self._clients} done, {self._begun} begun, {self._failed} failed>"


@attrs.define
class PhaseNote:
    """Facts about a phase that are collected while it runs at a worker.

    Attributes:
      bytes_sent: The bytes sent to the worker.
      bytes_received: The bytes of its response.
    """

    bytes_sent: int = 0
    bytes_received: int = 0

    def folded(self, what: str, clients: int, seconds: float) -> None:
        """Emits the event that the aggregations of the phase have their results."""
        observers.tell(Folded(**current_scope().span.ids, what=what, clients=clients, seconds=seconds))


_UNOBSERVED = contextlib.nullcontext()


def observed_phase(program: Program, clients: range, worker: str = "") -> AbstractContextManager[PhaseNote | None]:
    """Emits the events of a phase, or a part of one, around the block; does nothing without observers.

    The block runs in the span of the phase.

    Args:
      program: The program of the clients.
      clients: The clients.
      worker: The address of the worker; empty for a phase that runs here.

    Returns:
      A context manager that yields a note for the facts about the phase; `None` without observers.
    """
    return _observed(program, clients, worker) if observers.present else _UNOBSERVED


@contextlib.contextmanager
def _observed(program: Program, clients: range, worker: str) -> Generator[PhaseNote]:
    outer = current_scope()
    span, note, error = outer.span.new_phase(), PhaseNote(), ""
    known: dict[str, Any] = {
        **outer.span.ids,
        "phase": span.id,
        "functions": name_of(program),
        "first_client": clients.start,
        "clients": len(clients),
        "worker": worker,
    }
    observers.tell(PhaseStarted(**known))
    begin = time.perf_counter()
    try:
        with attrs.evolve(outer, span=span).entered():
            yield note
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        seconds = time.perf_counter() - begin
        observers.tell(
            PhaseEnded(
                **known,
                seconds=seconds,
                bytes_sent=note.bytes_sent,
                bytes_received=note.bytes_received,
                error=error,
            )
        )
