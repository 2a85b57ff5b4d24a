"""Runs client phases on the workers of a backend, and merges the workers' contributions along the fixed tree."""

import asyncio
from collections.abc import Sequence
from typing import cast

from fedstack.backends.backend import Backend, Caller
from fedstack.backends.task_phases import PhaseAtClients
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor
from fedstack.executors.base.aggregations import FoldArguments
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import with_programs
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine, PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.composing_executor import composed, even_counts
from fedstack.executors.concurrency.coroutines import gather, need_event_loop
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.factories import unplaced_stack
from fedstack.executors.federating_executor import FederatingExecutor
from fedstack.executors.leaf_executor import LeafExecutor
from fedstack.executors.reference_resolving_executor import ReferenceResolvingExecutor
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import MOST_CLIENTS, check_whole_number
from fedstack.membership.ledger import Suspects


class BackendPhases(PhaseEngine):
    """Divides each phase evenly among the workers that are available when the phase starts; see `BackendExecutor`."""

    def __init__(self, backend: Backend, caller: Caller, num_clients: int) -> None:
        super().__init__(caller.server)
        self._backend = backend
        self._caller = caller
        self._num_clients = num_clients

    @property
    def clients(self) -> int:
        return self._num_clients

    async def fold_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, *, all_clients: bool
    ) -> FoldedPhase:
        await need_event_loop()
        backend, losses, is_over = self._backend, current_scope().losses, asyncio.Event()
        suspects: Sequence[Suspects] = losses.suspects(phase) if losses else ()

        async def search() -> None:
            part = PhaseAtClients(phase, inputs, arguments, clients)
            if await backend.search(part, suspects, self._caller):
                losses.forget(phase)
            is_over.set()

        if suspects and not backend.searches_apart:
            await search()
            suspects = ()
        places = await backend.with_room(await backend.places(), self._num_clients)
        counts = even_counts(self._num_clients, len(places))
        runners, clients_of = backend.runners(phase, places, counts, self._caller)
        if suspects:
            runners = [_AfterSearch(runner, suspects, is_over) for runner in runners]
        phases = composed(self.server, runners, clients_of, self._caller.max_fanout)
        folding = phases.fold_phase(phase, inputs, arguments, clients, all_clients=all_clients)
        if not suspects:
            return await folding
        folded, _ = await gather([folding, search()])  # an error of the search cancels the phase
        return cast(FoldedPhase, folded)


class _AfterSearch(PhaseRunner):
    """Runs suspected clients after a search has ended, and other clients immediately."""

    def __init__(self, runner: PhaseRunner, suspects: Sequence[Suspects], is_over: asyncio.Event) -> None:
        self._runner = runner
        self._suspects = suspects
        self._is_over = is_over

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        if any(some.overlaps(clients) for some in self._suspects):
            await self._is_over.wait()
        return await self._runner.run_phase(phase, inputs, arguments, clients)


class BackendExecutor(VerbExecutor):
    """Runs client work on the workers of a backend, and server work in this process.

    Results do not depend on the workers. Workers may join, leave or be lost between phases.

    Args:
      server: The executor for unplaced work and server work. This executor closes it.
      backend: The backend with the workers. This executor does not close it.
      num_clients: The number of clients.
      max_fanout: The maximum number of parts of a phase that are merged in one place. More parts are merged in levels.
      max_concurrent_clients: The maximum number of functions that a worker runs at the same time; `None` for the
        worker's default.
    """

    def __init__(
        self,
        server: Executor,
        backend: Backend,
        num_clients: int,
        max_fanout: int,
        max_concurrent_clients: int | None = None,
    ) -> None:
        self.server, programs = with_programs(server)
        self._backend = backend
        phases = BackendPhases(backend, Caller(programs, max_fanout, max_concurrent_clients), num_clients)
        super().__init__(LazyRecorder(phases), self.server)

    @property
    def label(self) -> str:
        return f"{super().label} with {counted(self.known_clients or 0, 'client')}, {self._backend.label}"


class BackendExecutorFactory(ResourceManagingExecutorFactory):
    """Creates executor stacks that run client work on a backend, and server work in this process.

    Each client phase is divided evenly among the workers that are available when the phase starts. If a worker is lost,
    the current round fails, and the context repeats the round on the remaining workers with the same result.

    Args:
      backend: The backend. The factory closes it.
      default_num_clients: The number of clients for computations whose arguments do not determine it.
      max_fanout: The maximum number of partial results that are merged in one place.
      max_concurrent_clients: The maximum number of functions that a worker runs at the same time. By default, one per
        core (`Backend.cores`) for functions that compute. For functions that wait, 32, or four per core if that is
        more.
      data_backend: Resolves `data` blocks in server work, except blocks with a function type.

    Raises:
      InvalidValueError: If a number is out of range.
    """

    def __init__(
        self,
        backend: Backend,
        default_num_clients: int = 0,
        max_fanout: int = 100,
        *,
        max_concurrent_clients: int | None = None,
        data_backend: DataBackend | None = None,
    ) -> None:
        check_whole_number("default_num_clients", default_num_clients, 0, MOST_CLIENTS)
        check_whole_number("max_fanout", max_fanout, 2)
        if max_concurrent_clients is not None:
            check_whole_number("max_concurrent_clients", max_concurrent_clients, 1)

        def stack(cardinalities: CardinalitiesType) -> Executor:
            server, clients = unplaced_stack(LeafExecutor(), data_backend), cardinalities[CLIENTS]
            if not clients:
                return ReferenceResolvingExecutor(FederatingExecutor(server, 0))
            executor = BackendExecutor(server, backend, clients, max_fanout, max_concurrent_clients)
            return ReferenceResolvingExecutor(executor)

        super().__init__(stack, default_num_clients=default_num_clients)
        self.backend = backend

    def end(self) -> None:
        self.backend.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.backend!r}>"
