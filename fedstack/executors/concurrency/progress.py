"""Counts the clients of an invocation, and tracks its running work.

`ProgressCounts` contains the counts of an invocation, and a `PhaseReport` updates them from the heartbeats of a worker.
"""

import heapq
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol

import attrs

from fedstack.computations.leaves.work_scope import ClientCounter
from fedstack.errors import FedstackError, StaleSessionError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.observe.client_events import ClientsChanged
from fedstack.observe.events import NO_SPAN, Span
from fedstack.observe.observers import observers
from fedstack.transport.wire.frames import Heartbeat, RunningClients

_MOST_WORK = 8


class ReportsWork(Protocol):
    """Runs work of an invocation and reports the running clients."""

    def work(self) -> Iterable[RunningClients]:
        """Returns the work that is currently running. May be called from any thread."""
        ...


class ProgressListener(Protocol):
    """Receives the progress of an invocation.

    Its methods are called on leaf threads and must return quickly. A listener that raises an exception is detached.
    """

    def changed(self, counts: "ProgressCounts") -> None:
        """Receives the counts after each change."""
        ...


class ProgressCounts:
    """The numbers of done, running and failed clients of an invocation, over all its phases so far.

    Attributes:
      total: The number of clients of the phases that have begun.
      done: The number of clients that are done.
      running: The number of clients that have started and not ended.
      failures: The number of clients that failed.
      lost: The number of clients that ran again, or will, because their worker was lost.
      moved: The number of clients that moved from a busy worker to an idle one before they ran.
      twice: The number of clients that ran on two workers at the same time.
    """

    def __init__(self, listener: ProgressListener | None = None) -> None:
        self.total = 0
        self.done = 0
        self.running = 0
        self.failures = 0
        self.lost = self.moved = self.twice = 0
        self._listener = listener
        self._lock = threading.Lock()
        # A worker stays in this set until it has finished, which may be after its caller has stopped waiting.
        self._workers: weakref.WeakSet[ReportsWork] = weakref.WeakSet()
        renew_after_fork(self)

    def renew(self) -> None:
        """Detaches the listener in a forked child, because the listener belongs to the parent."""
        self._lock = threading.Lock()
        self._listener = None
        self._workers = weakref.WeakSet()

    def expect(self, clients: int) -> None:
        """Adds the clients of a starting phase to the total."""
        self._change(total=clients)

    def started(self, clients: int) -> None:
        """Counts clients that have started."""
        self._change(running=clients)

    def finished(self, clients: int) -> None:
        """Counts clients that are done."""
        self._change(running=-clients, done=clients)

    def failed(self, clients: int, given_up: int = 0) -> None:
        """Counts clients that failed.

        Args:
          clients: The number of clients that failed.
          given_up: The number of further clients that had started but were abandoned.
        """
        self._change(running=-clients - given_up, failures=clients, given_up=given_up)

    def withdrawn(self, done: int, running: int, failed: int) -> None:
        """Takes back clients that were counted, because they run again on another worker.

        Args:
          done: The number of these clients that were counted as done.
          running: The number of these clients that were counted as running.
          failed: The number of these clients that were counted as failed.
        """
        self._change(done=-done, running=-running, failures=-failed)

    def elsewhere(self, lost: int = 0, moved: int = 0, twice: int = 0) -> None:
        """Counts clients that do not run where they were assigned at first. The other counts stay the same.

        Args:
          lost: The number of clients that run again, because their worker was lost.
          moved: The number of clients that moved from a busy worker to an idle one.
          twice: The number of clients that run on an idle worker as well.
        """
        with self._lock:
            self.lost += lost
            self.moved += moved
            self.twice += twice
        if self._listener is not None:
            self._listener.changed(self)

    def restart(self) -> None:
        """Resets the counts after a failed attempt, because the whole invocation is repeated."""
        with self._lock:
            self.total = self.done = self.running = self.failures = self.lost = self.moved = self.twice = 0
            self._workers.clear()
        if self._listener is not None:
            self._listener.changed(self)

    def watch(self, worker: ReportsWork) -> None:
        """Adds a worker whose running work is reported. Only a weak reference to the worker is kept."""
        with self._lock:
            self._workers.add(worker)

    def work(self) -> list[RunningClients]:
        """Returns the longest-running work, in descending order of run time."""
        with self._lock:
            workers = list(self._workers)
        found = [work for worker in workers for work in worker.work()]
        return heapq.nlargest(_MOST_WORK, found, key=lambda work: work.seconds)

    def running_now(self, work: Sequence[RunningClients]) -> int:
        """Returns how many clients run at this moment. Those of a block start together, and run one after the other.

        Args:
          work: What `work` returned.
        """
        if not work or len(work) == _MOST_WORK:  # there may be more
            return self.running
        return min(self.running, sum(one.clients if one.client is None else 1 for one in work))

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
    """Counts whose changes are reported to observers as events.

    Attributes:
      span: The part of a call to which the clients belong.
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
                    started=running + done + failures + given_up,
                    done=done,
                    failed=failures,
                    given_up=given_up,
                )
            )


# The maximum number of running clients that are kept from a heartbeat.
_MOST_RUNNING = 1000


class PhaseReport:
    """Adds the progress of a phase on a worker to the progress of the invocation, during a `with` block.

    Inconsistent heartbeats are corrected, so that no client ends twice or before it has started.

    Args:
      progress: The progress of the invocation; `None` if it is not counted.
      clients: The number of clients of the phase on this worker.

    Attributes:
      running: The running clients that the worker last named, up to a limit.
    """

    def __init__(self, progress: ClientCounter | None, clients: int) -> None:
        self._progress = progress
        self._clients = clients
        self._begun = self._done = self._failed = self._handed_in = self._left_out = 0
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
            failed = max(self._failed, self._left_out)
            self._reach(self._clients, self._clients - failed, failed)
        else:
            # The worker's last heartbeat may be outdated, so the failed client is counted here if necessary.
            failed = max(self._failed, int(isinstance(error, FedstackError) and error.client_index is not None))
            begun = max(self._begun, self._done + failed)
            self._reach(begun, self._done, failed, begun - self._done - failed)
            if isinstance(error, StaleSessionError) and self._progress is not None:  # the clients run again
                self._progress.withdrawn(max(0, self._done - self._handed_in), 0, failed)

    def heard(self, beat: Heartbeat) -> None:
        """Updates the progress from a heartbeat of the worker."""
        self._work, self._heard = beat.work, time.monotonic()
        if any(work.clients for work in beat.work):
            starts = [(work.first_client, min(work.clients, _MOST_RUNNING)) for work in beat.work]
            self.running = [client for start, count in starts for client in range(start, start + count)][:_MOST_RUNNING]
        begun = min(max(self._begun, beat.done + beat.running + beat.failed), self._clients)
        done = min(max(self._done, beat.done), begun - self._failed)
        self._reach(begun, done, min(max(self._failed, beat.failed), begun - done))

    def left_out(self, clients: int) -> None:
        """Records that a response leaves out some further clients, which have failed."""
        self._left_out += clients

    def handed_in(self, clients: int) -> None:
        """Updates the progress after the contribution of the first clients has been received."""
        self._handed_in = clients
        failed = max(self._failed, self._left_out)
        done = min(max(self._done, clients - failed), self._clients - failed)
        self._reach(max(self._begun, done + failed), done, failed)

    def ends_after(self, clients: int) -> None:
        """Updates the progress after the worker has left all but the first clients to other workers."""
        self._clients = min(self._clients, clients)

    def work(self) -> list[RunningClients]:
        """Returns the work that was running at the last heartbeat. Each change leads to another heartbeat soon."""
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


class PartProgress:
    """Counts the clients of one part of a phase for an invocation, and can take the counts back if the part is lost.

    The clients of the part are already included in the number of expected clients.

    Args:
      progress: The progress of the invocation.
      changed: Called on any thread after clients have ended.
    """

    def __init__(self, progress: ClientCounter, changed: Callable[[], None] = lambda: None) -> None:
        self._progress = progress
        self._changed = changed
        self._done = self._running = self._failed = 0
        self._lock = threading.Lock()

    def expect(self, clients: int) -> None:
        """Does nothing; see the class."""

    def started(self, clients: int) -> None:
        """Counts clients that have started."""
        self._change(running=clients)
        self._progress.started(clients)

    def finished(self, clients: int) -> None:
        """Counts clients that are done."""
        self._change(done=clients, running=-clients)
        self._progress.finished(clients)
        self._changed()

    @property
    def done(self) -> int:
        """The number of clients that are done and not settled."""
        return self._done

    def failed(self, clients: int, given_up: int = 0) -> None:
        """Counts clients that failed, and started clients that were abandoned."""
        self._change(running=-clients - given_up, failed=clients)
        self._progress.failed(clients, given_up)

    def withdrawn(self, done: int, running: int, failed: int) -> None:
        """Takes back some of the clients that were counted."""
        self._change(-done, -running, -failed)
        self._progress.withdrawn(done, running, failed)

    def elsewhere(self, lost: int = 0, moved: int = 0, twice: int = 0) -> None:
        """Counts clients that run on another worker; see `ProgressCounts.elsewhere`."""
        self._progress.elsewhere(lost, moved, twice)

    def watch(self, worker: ReportsWork) -> None:
        """Adds a worker whose running work is reported."""
        self._progress.watch(worker)

    def settled(self, clients: int, failed: int = 0) -> None:
        """Excludes clients from `withdraw` that are done for good, or have failed.

        Args:
          clients: The number of clients that are done or have failed.
          failed: The number of them that have failed.
        """
        self._change(done=failed - clients, failed=-failed)

    def withdraw(self) -> None:
        """Takes back the clients of the part that are not settled."""
        done, running, failed = max(0, self._done), self._running, self._failed
        if done or running or failed:
            self.withdrawn(done, running, failed)

    def _change(self, done: int = 0, running: int = 0, failed: int = 0) -> None:
        with self._lock:
            self._done += done
            self._running += running
            self._failed += failed
