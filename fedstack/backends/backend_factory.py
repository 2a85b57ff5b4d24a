"""Makes the stacks that run client work on another engine."""

from fedstack.backends import guest
from fedstack.backends.backend import Backend
from fedstack.backends.backend_phases import BackendExecutor
from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.federating_executor import FederatingExecutor
from fedstack.executors.leaf_executor import LeafExecutor
from fedstack.executors.reference_resolving_executor import ReferenceResolvingExecutor
from fedstack.executors.stacks.factories import unplaced_stack
from fedstack.executors.stacks.resource_factory import ResourceManagingExecutorFactory
from fedstack.foundations.number_checks import MOST_CLIENTS, check_whole_number


class BackendExecutorFactory(ResourceManagingExecutorFactory):
    """A factory of stacks that run the work of clients on another engine, and the server's work here.

    Each client phase is spread evenly over the workers that there are when it begins. One that is lost costs the round:
    the context runs it again on those left, with the same result.

    Args:
      backend: The engine. It is closed with the factory.
      default_num_clients: The number of clients of computations whose arguments do not tell.
      max_fanout: The most children of one composing executor.
      max_concurrent_clients: The most functions that run at the same time at a worker; by default one per core if they
        compute (`Backend.cores`), and 32 if they wait, or four per core if that is more.
      data_backend: Resolves `data` blocks at the server that are not functions.

    Raises:
      InvalidValueError: If a number is out of its range.
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
        settings = guest.settings_of_sender(max_concurrent_clients, backend.cores)

        def stack(cardinalities: CardinalitiesType) -> Executor:
            server = unplaced_stack(LeafExecutor(), data_backend)
            clients = cardinalities[CLIENTS]
            if not clients:
                return ReferenceResolvingExecutor(FederatingExecutor(server, 0))
            return ReferenceResolvingExecutor(BackendExecutor(server, backend, clients, settings, max_fanout))

        super().__init__(stack, default_num_clients=default_num_clients)
        self.backend = backend

    def end(self) -> None:
        self.backend.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.backend!r}>"
