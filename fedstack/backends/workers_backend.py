"""Runs clients at workers behind gRPC: whole phases are sent to them, in one session per worker for all callers.

A worker keeps its session for all phases, whatever their numbers of clients. An executor service that knows only the
plain verbs has a session for each number of clients, and folds run here (`plain_phases.py`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Sequence
from typing import cast

import attrs

from fedstack.backends.backend import Backend, Caller
from fedstack.backends.plain_phases import PlainPhases
from fedstack.backends.task_phases import PhaseAtClients
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor
from fedstack.errors import DeadlineExceededError, LeafError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.base.aggregations import FoldArguments
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.one_by_one import OneByOneExecutor
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.remote.remote_phases import RemotePhases
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.foundations.error_text import counted, with_place
from fedstack.membership.ledger import Suspects
from fedstack.membership.member import MemberState
from fedstack.membership.membership_observer import MembershipObserver
from fedstack.transport.wire.status import RemoteTraceback

_logger = logging.getLogger(__name__)


class WorkersBackend(Backend):
    """Workers behind gRPC, which are members: `Membership` tracks them between phases.

    Args:
      workers: The workers. They are closed with this.
      dispose_batch_size: How many values are disposed of in one call.
      stream_structs: Whether structs are sent leaf by leaf to plain executor services.
      source: The owner of the workers; a pool ends its processes once nothing refers to it.

    Attributes:
      workers: The workers.
    """

    searches_apart = True

    def __init__(
        self, workers: Workers, dispose_batch_size: int = 20, stream_structs: bool = False, source: object = None
    ) -> None:
        self.workers = workers
        self._dispose_batch_size = dispose_batch_size
        self._stream_structs = stream_structs
        self._source = source
        self._sessions: dict[Worker, _Sessions] = {}

    async def places(self) -> Sequence[Worker]:
        return await self.workers.ready()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self.workers.subscribe(_Watching(changed))

    def sessions_at(self, worker: Worker) -> "_Sessions":
        """Returns the open sessions at a worker; they stay open."""
        found = self._sessions.get(worker)
        if found is None:
            stub, batch, streams = worker.stub, self._dispose_batch_size, self._stream_structs

            def plain(cardinalities: CardinalitiesType) -> Executor:
                remote = RemoteExecutor(stub, batch, streams)
                remote.set_cardinalities(cardinalities)
                return OneByOneExecutor(remote)

            made = _Sessions(RemotePhases(SessionOpener(stub, batch)), ResourceManagingExecutorFactory(plain))
            found = self._sessions.setdefault(worker, made)  # another thread may have been faster
        return found

    async def with_room(self, places: Sequence[Worker], most: int) -> Sequence[Worker]:
        """Returns the first workers that have room for a session, and opens their sessions.

        Raises:
          ResourceLimitError: If none has room.
          WorkerUnavailableError: If a worker has gone away meanwhile.
        """
        if len(self._sessions) > len(self.workers.members):
            for worker in [worker for worker in self._sessions if worker.state is MemberState.REMOVED]:
                self._sessions.pop(worker).plain.close()  # the other sessions end with the last phase that runs there
        chosen = places[:most]
        if all(worker.refusal is None for worker in places) and all(map(self._is_open, chosen)):
            return chosen
        refusals: list[ResourceLimitError] = []
        for candidates in self.workers.by_room(places):
            found: list[Worker] = []
            while candidates and len(found) < most:
                asked, candidates = candidates[: most - len(found)], candidates[most - len(found) :]
                answers = await asyncio.gather(*map(self._refusal, asked))
                found += [worker for worker, answer in zip(asked, answers) if answer is None]
                refusals += [answer for answer in answers if answer is not None]
            if found:
                return found
        raise refusals[0]

    async def _refusal(self, worker: Worker) -> ResourceLimitError | None:
        """Opens the session at a worker if there is none; returns the refusal if there is no room for it."""
        if self._is_open(worker):
            return None
        try:
            await self.sessions_at(worker).phases.open()
        except ResourceLimitError as error:
            self.workers.full(worker, error)
            return error
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            raise self.lost(worker, error) from error
        self.workers.has_room(worker)
        return None

    def _is_open(self, worker: Worker) -> bool:
        return not worker.features.phases or self.sessions_at(worker).phases.has_session

    def runners(
        self, phase: Phase, places: Sequence[Worker], counts: Sequence[int], caller: Caller
    ) -> tuple[Sequence[PhaseRunner], Sequence[int]]:
        return [_WorkerPhases(self, worker, caller.server) for worker in places], counts

    async def search(self, part: PhaseAtClients, suspects: Sequence[Suspects], caller: Caller) -> bool:
        """Has a worker search in its own child processes, which costs no other worker; some workers cannot."""
        able = [worker for worker in await self.places() if worker.features.searches]
        losses = current_scope().losses
        for some in suspects if able else ():
            try:
                await self._search(part.at(some.clients), some, able)
            except LeafError as error:
                client = error.client_index
                ended = some.losses if client is None else losses.losses(part.phase, client)
                found = f"it ended {counted(ended, 'worker')} before it was found; fix the function"
                raise with_place(error, found) from error.__cause__
        return bool(able)

    async def _search(self, part: PhaseAtClients, suspects: Suspects, able: Sequence[Worker]) -> None:
        """Has one worker search for a client that ends its process."""
        (worker,) = await self.with_room(able, 1)
        found = "%s; the worker at %s looks for one that ends its process, in processes apart"
        _logger.warning(found, suspects, worker.address)
        try:
            await self.sessions_at(worker).phases.search_phase(part.phase, part.inputs, part.arguments, suspects)
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            if isinstance(error.__cause__, RemoteTraceback):
                raise
            raise self.lost(worker, error) from error
        _logger.warning("None of them ends its process; going on")

    def lost(self, worker: Worker, error: Exception) -> WorkerUnavailableError:
        """Records that a worker has failed; returns the error to raise."""
        # The cause is not the worker's state: membership watches it from here on, and may have found it healthy again.
        address, cause = worker.address, worker.line_of(self.workers.lost(worker, error))
        lost = WorkerUnavailableError(f"The worker at {address} was lost during its part: {cause}")
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
    """The open sessions at one worker, for phases of any number of clients.

    Attributes:
      phases: The session at a worker that runs phases.
      plain: The sessions at a worker that does not, by number of clients.
    """

    phases: RemotePhases
    plain: ResourceManagingExecutorFactory

    @contextlib.contextmanager
    def lent(self, clients: int) -> Generator[OneByOneExecutor, None, None]:
        """Lends a plain session; a new session replaces one in which something has failed."""
        executor, failed = self.plain.lease({CLIENTS: clients}), True
        try:
            yield cast(OneByOneExecutor, executor)
            failed = False
        finally:
            self.plain.release(executor, failed=failed)


class _WorkerPhases(PhaseRunner):
    """Runs a phase for some clients at one worker, and reports the loss of the worker."""

    def __init__(self, backend: WorkersBackend, worker: Worker, server: ProgramEngine) -> None:
        self._backend = backend
        self._worker = worker
        self._server = server

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        worker, is_served = self._worker, False
        try:
            sessions = self._backend.sessions_at(worker)  # kept there, so that they end when the worker is removed
            if worker.features.phases and await sessions.phases.open():
                is_served = True
                return await sessions.phases.run_phase(phase, inputs, arguments, clients)
            with sessions.lent(len(clients)) as plain:
                remote = cast(RemoteExecutor, plain.target)
                await remote.open()  # failures from here on happen during work
                is_served = True
                phases = PlainPhases(remote, plain.foreign, self._server)
                return await phases.run_phase(phase, inputs, arguments, clients)
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            if is_served and isinstance(error.__cause__, RemoteTraceback):
                raise  # the worker itself reports this about something behind it: it is alive
            raise self._backend.lost(worker, error) from error


class _Watching(MembershipObserver[Worker]):
    """Forwards changes of workers."""

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
