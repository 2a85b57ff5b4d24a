"""Runs clients on workers behind gRPC, which receive whole phases in one session per worker.

All callers share the session of a worker, which is kept for phases of any number of clients. An executor service that
supports only the plain verbs has one session per number of clients, and this process runs the folds
(`plain_phases.py`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TypeVar, cast

import attrs

from fedstack.backends.backend import Backend, Caller
from fedstack.backends.piece_runs import PieceRun, pieces_of_inputs
from fedstack.backends.plain_phases import PlainPhases
from fedstack.backends.task_phases import PhaseAtClients
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor
from fedstack.computations.values.shared_columns import SharedColumn
from fedstack.errors import DeadlineExceededError, LeafError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.hand_ins import Contribution, HandIn
from fedstack.executors.base.one_by_one import OneByOneExecutor
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.folds.aggregations import FoldArguments, slice_inputs
from fedstack.executors.remote.remote_phases import RemotePhases
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.executors.remote.worker_stubs import RestartsWorkers
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.foundations.error_text import counted, with_place
from fedstack.membership.ledger import Suspects
from fedstack.membership.member import MemberState
from fedstack.membership.membership_observer import MembershipObserver
from fedstack.transport.wire.status import RemoteTraceback

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class WorkersBackend(Backend):
    """A backend of workers behind gRPC, which a `Membership` tracks between phases.

    Args:
      workers: The workers. `close` also closes them.
      dispose_batch_size: The number of values that are disposed of in one call.
      stream_structs: Whether structs are sent leaf by leaf to plain executor services.
      source: The owner of the workers. The backend refers to it, because a pool ends its processes once it is
        garbage-collected.

    Attributes:
      workers: The workers.
    """

    stops_clients = True
    searches_apart = True

    def __init__(
        self, workers: Workers, dispose_batch_size: int = 20, stream_structs: bool = False, source: object = None
    ) -> None:
        self.workers = workers
        self._dispose_batch_size = dispose_batch_size
        self._stream_structs = stream_structs
        self._source = source
        self._restarts = source if isinstance(source, RestartsWorkers) else None
        self._sessions: dict[Worker, _Sessions] = {}

    async def places(self) -> Sequence[Worker]:
        return await self.workers.ready()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self.workers.subscribe(_Watching(changed))

    def sessions_at(self, worker: Worker) -> "_Sessions":
        """Returns the sessions on a worker, which stay open."""
        found = self._sessions.get(worker)
        if found is None:
            stub, batch, streams = worker.stub, self._dispose_batch_size, self._stream_structs

            def plain(cardinalities: CardinalitiesType) -> Executor:
                remote = RemoteExecutor(stub, batch, streams)
                remote.set_cardinalities(cardinalities)
                return OneByOneExecutor(remote)

            made = _Sessions(RemotePhases(SessionOpener(stub, batch)), ResourceManagingExecutorFactory(plain))
            found = self._sessions.setdefault(worker, made)  # another thread may have added sessions first
        return found

    async def with_room(self, places: Sequence[Worker], most: int) -> Sequence[Worker]:
        """Returns the first workers that have room for a session, and opens their sessions.

        Workers that are lost meanwhile are left out.

        Raises:
          ResourceLimitError: If no worker has room.
          WorkerUnavailableError: If no worker is left, or none of those that are left has room.
        """
        if len(self._sessions) > len(self.workers.members):
            for worker in [worker for worker in self._sessions if worker.state is MemberState.REMOVED]:
                self._sessions.pop(worker).plain.close()  # the other sessions end with the last phase that runs there
        chosen = places[:most]
        if all(worker.refusal is None for worker in places) and all(map(self._is_open, chosen)):
            return chosen
        refusals: list[ResourceLimitError | WorkerUnavailableError] = []
        for candidates in self.workers.by_room(places):
            found: list[Worker] = []
            while candidates and len(found) < most:
                asked, candidates = candidates[: most - len(found)], candidates[most - len(found) :]
                answers = await asyncio.gather(*map(self._refusal, asked))
                found += [worker for worker, answer in zip(asked, answers) if answer is None]
                refusals += [answer for answer in answers if answer is not None]
            if found:
                return found
        raise next((error for error in refusals if isinstance(error, WorkerUnavailableError)), refusals[0])

    async def _refusal(self, worker: Worker) -> ResourceLimitError | WorkerUnavailableError | None:
        """Opens the session on a worker if it is not open; returns the error if it is lost or has no room for it."""
        if self._is_open(worker):
            return None
        try:
            await self.sessions_at(worker).phases.open()
        except ResourceLimitError as error:
            self.workers.full(worker, error)
            return error
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            lost = self.lost(worker, error)
            lost.__cause__ = error
            return lost
        self.workers.has_room(worker)
        return None

    def _is_open(self, worker: Worker) -> bool:
        return not worker.features.phases or self.sessions_at(worker).phases.session is not None

    def kept_at(self, place: Worker, inputs: Sequence[object]) -> Sequence[range]:
        session = self.sessions_at(place).phases.session
        if session is None:
            return ()
        return [
            members
            for column in inputs
            if isinstance(column, SharedColumn) and not column.is_constant
            for copy, members in column.parts_at(session)
            if copy is not None
        ]

    def runners(
        self, phase: Phase, places: Sequence[Worker], counts: Sequence[int], caller: Caller
    ) -> tuple[Sequence[PhaseRunner], Sequence[int]]:
        return [_WorkerPhases(self, worker, caller.server) for worker in places], counts

    @property
    def loses_workers(self) -> bool:
        return self._restarts is None or not self._restarts.restarts

    def guarding(self) -> int:
        if self._restarts is not None:
            return 0
        return sum(worker.is_ready and worker.features.searches for worker in self.workers.members)

    async def search(self, part: PhaseAtClients, suspects: Sequence[Suspects], caller: Caller) -> bool:
        """Runs the search in child processes of a worker, so that no worker is lost; not all workers can search."""
        able = [worker for worker in await self.places() if worker.features.searches]
        losses = current_scope().losses
        for some in suspects if able else ():
            try:
                await self._search(part.at(some.clients), some, able)
            except LeafError as error:
                client = error.client_index
                ended = some.losses if client is None else losses.losses(part.phase, client)
                found = f"it ended {counted(ended, 'worker')} before the search found it; fix the function"
                raise with_place(error, found) from error.__cause__
        return bool(able)

    async def _search(self, part: PhaseAtClients, suspects: Suspects, able: Sequence[Worker]) -> None:
        """Runs a search on one worker for a client that ends its process."""
        (worker,) = await self.with_room(able, 1)
        found = "%s; the worker at %s is searching in child processes for the client that ends its process"
        _logger.warning(found, suspects, worker.address)
        try:
            await self.sessions_at(worker).phases.search_phase(part.phase, part.inputs, part.arguments, suspects)
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            if isinstance(error.__cause__, RemoteTraceback):
                raise
            raise self.lost(worker, error) from error
        _logger.warning("None of these clients ended its process in the search; the attempt continues")

    def worked(self, worker: Worker) -> None:
        """Records that a worker has contributed to a phase."""
        if self._restarts is not None:
            self._restarts.worked(worker.address)

    def lost(self, worker: Worker, error: Exception) -> WorkerUnavailableError:
        """Records that a worker was lost, and returns the error to raise."""
        # The cause is not read from the worker's state, because the membership may already have found it healthy.
        address, cause = worker.address, worker.line_of(self.workers.lost(worker, error))
        lost = WorkerUnavailableError(f"The worker at {address} was lost while it ran its part: {cause}")
        lost.causes = {address: cause}
        return lost

    def close(self) -> None:
        sessions = list(self._sessions.values())
        for each in sessions:
            each.plain.close()
        self.workers.close([each.phases.end for each in sessions])

    @property
    def label(self) -> str:
        return "workers: " + ", ".join(f"{worker.address} ({worker.state.value})" for worker in self.workers.members)

    def __repr__(self) -> str:
        return f"<WorkersBackend with {len(self._sessions)} sessions over {self.workers!r}>"


@attrs.frozen(eq=False)
class _Sessions:
    """The sessions on one worker.

    Attributes:
      phases: The session for whole phases, if the worker runs phases.
      plain: The sessions by number of clients, if the worker supports only the plain verbs.
    """

    phases: RemotePhases
    plain: ResourceManagingExecutorFactory

    @contextlib.contextmanager
    def lent(self, clients: int) -> Generator[OneByOneExecutor, None, None]:
        """Lends a plain session for the block. A session in which an error occurred is replaced by a new session."""
        executor, failed = self.plain.lease({CLIENTS: clients}), True
        try:
            yield cast(OneByOneExecutor, executor)
            failed = False
        finally:
            self.plain.release(executor, failed=failed)


class _WorkerPhases(PhaseRunner):
    """A runner that runs a phase for some clients on one worker, and records the loss of the worker."""

    def __init__(self, backend: WorkersBackend, worker: Worker, server: ProgramEngine) -> None:
        self._backend = backend
        self._worker = worker
        self._server = server

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        return await self._run(lambda runner: runner.run_phase(phase, inputs, arguments, clients), len(clients))

    async def run_in_parts(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, hand_in: HandIn
    ) -> Contribution:
        def take(clients: range, result: PhaseResult) -> None:
            self._backend.worked(self._worker)
            hand_in.take(clients, result)

        noted = attrs.evolve(hand_in, take=take)
        pieces = pieces_of_inputs(inputs, len(clients), self._worker.features.threads)
        if pieces is None or not self._worker.features.phases:
            return await self._run(
                lambda runner: runner.run_in_parts(phase, inputs, arguments, clients, noted), len(clients)
            )

        async def run(some: range, handed: HandIn) -> Contribution:
            own = slice_inputs(inputs, some.start - clients.start, some.stop - clients.start)
            return await self._run(lambda runner: runner.run_in_parts(phase, own, arguments, some, handed), len(some))

        return await PieceRun(run, pieces, clients, noted).run()

    async def _run(self, work: Callable[[PhaseRunner], Awaitable[_T]], clients: int) -> _T:
        worker, is_served = self._worker, False
        try:
            # The backend owns the sessions, and ends them after the worker has been removed.
            sessions = self._backend.sessions_at(worker)
            if worker.features.phases and await sessions.phases.open():
                is_served = True
                done = await work(sessions.phases)
                self._backend.worked(worker)
                return done
            with sessions.lent(clients) as plain:
                remote = cast(RemoteExecutor, plain.target)
                await remote.open()  # later failures happen during the work
                is_served = True
                return await work(PlainPhases(remote, plain.foreign, self._server))
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            if is_served and isinstance(error.__cause__, RemoteTraceback):
                raise  # the worker is alive, and reports the loss of a peer behind it
            raise self._backend.lost(worker, error) from error


class _Watching(MembershipObserver[Worker]):
    """An observer that calls a function for every change of a worker."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def ready(self, member: Worker) -> None:
        self._changed()

    def draining(self, member: Worker) -> None:
        self._changed()

    def lost(self, member: Worker, error: Exception) -> None:
        self._changed()

    def removed(self, member: Worker) -> None:
        self._changed()
