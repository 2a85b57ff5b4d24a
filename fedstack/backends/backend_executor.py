"""Runs client phases on the workers of a backend, and merges the workers' contributions along the fixed tree."""

from collections.abc import Sequence

from fedstack.backends.backend import Backend, Caller
from fedstack.backends.elastic_phase import ElasticPhase
from fedstack.backends.task_phases import PhaseAtClients
from fedstack.computations.leaves.portability import Fleet
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import with_programs
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.concurrency.coroutines import need_event_loop
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.factories import unplaced_stack
from fedstack.executors.federating_executor import FederatingExecutor
from fedstack.executors.folds.aggregations import FoldArguments
from fedstack.executors.leaf_executor import LeafExecutor
from fedstack.executors.reference_resolving_executor import ReferenceResolvingExecutor
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import MOST_CLIENTS, check_bool, check_whole_number


class BackendPhases(PhaseEngine):
    """Divides each phase among the workers of a backend; see `BackendExecutor`."""

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
        part = PhaseAtClients(phase, inputs, arguments, clients)
        with current_scope().adding(self._caller.fleet).entered():
            return await ElasticPhase(self, self._backend, self._caller, part).folded()


class BackendExecutor(VerbExecutor):
    """Runs client work on the workers of a backend, and server work in this process.

    Results do not depend on the workers. Workers may join and leave between phases, and may be lost at any time.

    Args:
      server: The executor for unplaced work and server work. This executor closes it.
      backend: The backend with the workers. This executor does not close it.
      num_clients: The number of clients.
      max_fanout: The maximum number of parts of a phase that are merged in one place. More parts are merged in levels.
      max_concurrent_clients: The maximum number of functions that a worker runs at the same time; `None` for the
        worker's default.
      mixed: Whether workers may compile JAX functions in another way than this process; see `remote_executor_factory`.
    """

    def __init__(
        self,
        server: Executor,
        backend: Backend,
        num_clients: int,
        max_fanout: int,
        max_concurrent_clients: int | None = None,
        *,
        mixed: bool = False,
    ) -> None:
        self.server, programs = with_programs(server)
        self._backend = backend
        phases = BackendPhases(backend, Caller(programs, max_fanout, max_concurrent_clients, Fleet(mixed)), num_clients)
        super().__init__(LazyRecorder(phases), self.server)

    @property
    def label(self) -> str:
        return f"{super().label} with {counted(self.known_clients or 0, 'client')}, {self._backend.label}"


class BackendExecutorFactory(ResourceManagingExecutorFactory):
    """Creates executor stacks that run client work on a backend, and server work in this process.

    Each client phase is divided evenly among the workers that are available when the phase starts. If a worker is lost,
    its clients run again on the workers that are available then, with the same result. All other work continues.

    Args:
      backend: The backend. The factory closes it.
      default_num_clients: The number of clients for computations whose arguments do not determine it.
      max_fanout: The maximum number of partial results that are merged in one place.
      max_concurrent_clients: The maximum number of functions that a worker runs at the same time. By default, one per
        core (`Backend.cores`) for functions that compute. For functions that wait, 32, or four per core if that is
        more.
      data_backend: Resolves `data` blocks in server work, except blocks with a function type.
      mixed: Whether workers may compile JAX functions in another way than this process; see `remote_executor_factory`.

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
        mixed: bool = False,
    ) -> None:
        check_bool("mixed", mixed)
        check_whole_number("default_num_clients", default_num_clients, 0, MOST_CLIENTS)
        check_whole_number("max_fanout", max_fanout, 2)
        if max_concurrent_clients is not None:
            check_whole_number("max_concurrent_clients", max_concurrent_clients, 1)

        def stack(cardinalities: CardinalitiesType) -> Executor:
            server, clients = unplaced_stack(LeafExecutor(), data_backend), cardinalities[CLIENTS]
            if not clients:
                return ReferenceResolvingExecutor(FederatingExecutor(server, 0))
            executor = BackendExecutor(server, backend, clients, max_fanout, max_concurrent_clients, mixed=mixed)
            return ReferenceResolvingExecutor(executor)

        super().__init__(stack, default_num_clients=default_num_clients)
        self.backend = backend

    def end(self) -> None:
        self.backend.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.backend!r}>"
