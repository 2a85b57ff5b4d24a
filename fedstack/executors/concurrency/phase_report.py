"""Passes on to an invocation's progress what a worker tells of a phase that runs there."""

import time
from types import TracebackType

import attrs

from fedstack.computations.leaves.work_scope import ClientCounter
from fedstack.errors import FedstackError
from fedstack.transport.wire.frames import Heartbeat, RunningClients

# Of a heartbeat as many clients are remembered.
_MOST_RUNNING = 1000


class PhaseReport:
    """How far a phase at a worker is; while the block runs.

    A worker is believed as far as it can be right: no client ends twice, or before it begins.

    Args:
      progress: The progress of the invocation; `None` if nobody counts.
      clients: The number of clients of the phase at this worker.

    Attributes:
      running: The clients that ran when the worker last named some, as many as are of use.
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
            # What the worker has told of last may be some time ago.
            failed = max(self._failed, int(isinstance(error, FedstackError) and error.client_index is not None))
            begun = max(self._begun, self._done + failed)
            self._reach(begun, self._done, failed, begun - self._done - failed)

    def heard(self, beat: Heartbeat) -> None:
        """Takes note of a heartbeat."""
        self._work, self._heard = beat.work, time.monotonic()
        if any(work.clients for work in beat.work):
            starts = [(work.first_client, min(work.clients, _MOST_RUNNING)) for work in beat.work]
            self.running = [client for start, count in starts for client in range(start, start + count)][:_MOST_RUNNING]
        begun = min(max(self._begun, beat.done + beat.running + beat.failed), self._clients)
        done = min(max(self._done, beat.done), begun - self._failed)
        self._reach(begun, done, min(max(self._failed, beat.failed), begun - done))

    def work(self) -> list[RunningClients]:
        """Returns what ran when the worker last told; it has told soon if that changed."""
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
