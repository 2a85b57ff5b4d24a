"""Defines the executor that runs client phases on whatever workers are ready."""

import logging
from collections.abc import Callable, Sequence

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, Executor
from fedstack.errors import DeadlineExceededError, LeafError, WorkerUnavailableError
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.fold_arguments import FoldArguments, slice_inputs
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import with_programs
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine, PhaseRunner
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.composing_executor import ComposedPhases, composed, even_counts
from fedstack.executors.concurrency.sync_driver import need_event_loop
from fedstack.executors.folds.phase_sink import PhaseResult
from fedstack.executors.remote.phases.lost_ranges import Suspects
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.executors.stacks.plain_phases import PlainPhases
from fedstack.executors.stacks.worker_sessions import WorkerSessions
from fedstack.foundations.error_text import counted, with_place
from fedstack.transport.wire.status import RemoteTraceback

_logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Assignment:
    """Composed phases over certain workers, and how many run there.

    Attributes:
      slices: What runs a phase at each worker, in their order.
    """

    workers: list[Worker]
    slices: "list[_WorkerSlice]"
    phases: ComposedPhases
    running: int = 0
    retired: bool = False

    def retire(self) -> None:
        self.retired = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        if self.retired and not self.running:
            for part in self.slices:
                part.close()


class FleetPhases(PhaseEngine):
    """Runs phases on the workers that are ready when they begin; see `WorkersExecutor`."""

    def __init__(
        self,
        server: ProgramEngine,
        workers: Workers,
        num_clients: int,
        *,
        max_fanout: int,
        sessions: WorkerSessions,
        make_remote: Callable[[Worker], RemoteExecutor],
    ) -> None:
        super().__init__(server)
        self._workers = workers
        self._num_clients = num_clients
        self._max_fanout = max_fanout
        self._sessions = sessions
        self._make_remote = make_remote
        self._spread: _Assignment | None = None

    @property
    def clients(self) -> int:
        return self._num_clients

    async def fold_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, *, all_clients: bool
    ) -> FoldedPhase:
        await need_event_loop()
        ready = await self._workers.ready()
        losses = current_scope().losses
        able = [worker for worker in ready if worker.features.searches] if losses else []
        if losses and able and (suspects := losses.suspects(phase)):
            for some in suspects:
                offset = some.clients.start - clients.start
                part = slice_inputs(inputs, offset, offset + len(some.clients))
                try:
                    await self._search(phase, part, arguments, some, able)
                except LeafError as error:
                    client = error.client_index
                    ended = some.losses if client is None else losses.ended_with(phase, client)
                    found = f"it ended {counted(ended, 'worker')} before it was found; mend the function"
                    raise with_place(error, found) from error.__cause__
            losses.forget(phase)
            ready = await self._workers.ready()
        spread = self._spread_over(await self._sessions.with_room(ready, max(self._num_clients, 1)))
        spread.running += 1
        try:
            return await spread.phases.fold_phase(phase, inputs, arguments, clients, all_clients=all_clients)
        finally:
            spread.running -= 1
            spread.close_if_idle()

    async def _search(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, suspects: Suspects, able: list[Worker]
    ) -> None:
        """Lets one worker look for a client that ends its process among those that two workers have ended with.

        Raises:
          LeafError: If there is one; it is the user's, and not tried again.
          WorkerUnavailableError: If the worker has gone away.
        """
        (worker,) = await self._sessions.with_room(able, 1)
        clients = suspects.clients
        _logger.warning(
            "%d workers have ended while clients %d to %d ran; the worker at %s looks for one that ends its process, "
            "in processes apart",
            suspects.losses,
            clients.start,
            clients.stop - 1,
            worker.address,
        )
        try:
            await self._sessions.at(worker).search_phase(phase, inputs, arguments, suspects)
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            if isinstance(error.__cause__, RemoteTraceback):
                raise
            raise self._sessions.lost(worker, error) from error
        _logger.warning("None of the clients %d to %d ends its process; going on", clients.start, clients.stop - 1)

    def _spread_over(self, workers: list[Worker]) -> _Assignment:
        """Returns phases composed over the workers: the ones there are if these are their workers."""
        if self._spread is not None and self._spread.workers == workers:
            return self._spread
        if self._spread is not None:
            self._spread.retire()
        counts = even_counts(self._num_clients, len(workers))
        slices = [self._slice(worker, count) for worker, count in zip(workers, counts)]
        self._spread = _Assignment(workers, slices, composed(self.server, slices, counts, self._max_fanout))
        return self._spread

    def _slice(self, worker: Worker, count: int) -> "_WorkerSlice":
        def make_plain() -> PlainPhases:
            remote = self._make_remote(worker)
            remote.set_cardinalities({CLIENTS: count})
            return PlainPhases(remote, self.server, worker.address, count)

        return _WorkerSlice(worker, self._sessions, make_plain)

    def close(self) -> None:
        """Closes what is open at workers for these phases only. Idempotent."""
        if self._spread is not None:
            self._spread.retire()
            self._spread = None  # its slices know this engine


class WorkersExecutor(VerbExecutor):
    """Spreads each client phase evenly over the workers that are ready when it begins.

    Results do not depend on which these are, so workers may come, go and die between phases. What runs at the server
    runs here.

    Args:
      server: The executor of unplaced work and of work at the server. It is closed with this one.
      workers: The workers. They are not closed with this executor.
      num_clients: The number of clients.
      max_fanout: The most parts that a phase is composed of directly; where there are more, in levels.
      sessions: The sessions of phases at the workers; they stay open.
      make_remote: Makes an executor at a worker that knows no phases.
    """

    def __init__(
        self,
        server: Executor,
        workers: Workers,
        num_clients: int,
        *,
        max_fanout: int,
        sessions: WorkerSessions,
        make_remote: Callable[[Worker], RemoteExecutor],
    ) -> None:
        self.server, programs = with_programs(server)
        self._workers = workers
        phases = FleetPhases(
            programs,
            workers,
            num_clients,
            max_fanout=max_fanout,
            sessions=sessions,
            make_remote=make_remote,
        )
        super().__init__(LazyRecorder(phases), self.server, phases)

    @property
    def label(self) -> str:
        workers = ", ".join(f"{worker.address} ({worker.state.value})" for worker in self._workers.members)
        return f"{super().label} with {counted(self.known_clients or 0, 'client')}, workers: {workers}"


class _WorkerSlice(PhaseRunner):
    """Runs the phases of some clients at one worker, and tells when that fails."""

    def __init__(
        self,
        worker: Worker,
        sessions: WorkerSessions,
        make_plain: Callable[[], PlainPhases],
    ) -> None:
        self._worker = worker
        self._sessions = sessions
        self._make_plain = make_plain
        self._plain: PlainPhases | None = None

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        is_served = False
        try:
            phases = self._sessions.at(self._worker)  # kept there, to end when the worker is removed
            if self._worker.features.phases and await phases.open():
                is_served = True
                return await phases.run_phase(phase, inputs, arguments, clients)
            plain = self._plain = self._plain or self._make_plain()
            await plain.open()  # what fails from here on fails at work
            is_served = True
            return await plain.run_phase(phase, inputs, arguments, clients)
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            if is_served and isinstance(error.__cause__, RemoteTraceback):
                raise  # the worker says so itself, of something behind it: it is there
            raise self._sessions.lost(self._worker, error) from error

    def close(self) -> None:
        if self._plain is not None:
            self._plain.close()

    def __repr__(self) -> str:
        return f"<_WorkerSlice at {self._worker.address}>"
