"""Builds stacks of executors."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor
from fedstack.executors.concurrency.leaf_threads import SharedLeafThreads, most_threads
from fedstack.executors.data_executor import DataBackend, DataExecutor
from fedstack.executors.federating_executor import FederatingExecutor
from fedstack.executors.leaf_executor import LeafExecutor
from fedstack.executors.reference_resolving_executor import ReferenceResolvingExecutor
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.executors.sequence_executor import SequenceExecutor
from fedstack.executors.sizing_executor import SizeInfo, SizingExecutor
from fedstack.foundations.number_checks import check_whole_number
from fedstack.foundations.public_names import takes_options

if TYPE_CHECKING:
    from typing import Unpack


WrapClients = Callable[[Executor], Executor]
Stack = Callable[[CardinalitiesType], Executor]


class StackOptions(TypedDict, total=False):
    """The options of a local stack other than its numeric limits.

    Attributes:
      data_backend: Resolves `data` blocks that are not functions.
      wrap_clients: Wraps the executor that runs client work, for example for sizing, tracing or fault injection.
    """

    data_backend: DataBackend | None
    wrap_clients: WrapClients | None


def _local_stack(
    max_fanout: int, clients_per_thread: int | None, max_concurrent_clients: int | None, options: StackOptions
) -> Stack:
    """Checks the numeric limits and returns a function that builds a local stack for given cardinalities."""
    data_backend, wrap_clients = options.get("data_backend"), options.get("wrap_clients")
    for name, number, least in (
        ("max_fanout", max_fanout, 2),
        ("clients_per_thread", clients_per_thread, 1),
        ("max_concurrent_clients", max_concurrent_clients, 1),
    ):
        if number is not None:
            check_whole_number(name, number, least)

    threads = SharedLeafThreads(max_concurrent_clients)

    def stack(cardinalities: CardinalitiesType) -> Executor:
        leaf = LeafExecutor(
            threads=threads,
            clients_per_thread=clients_per_thread,
            max_concurrent_clients=max_concurrent_clients,
        )
        unplaced = unplaced_stack(leaf, data_backend)
        client_target = unplaced if wrap_clients is None else wrap_clients(unplaced)
        federating = FederatingExecutor(unplaced, cardinalities[CLIENTS], client_target=client_target)
        return ReferenceResolvingExecutor(federating)

    return stack


def unplaced_stack(leaf: Executor, data_backend: DataBackend | None) -> Executor:
    """Returns an executor for work without a placement, built over a leaf executor."""
    return SequenceExecutor(leaf if data_backend is None else DataExecutor(leaf, data_backend))


@takes_options(StackOptions, data_backend=None, wrap_clients=None)
def local_executor_factory(
    default_num_clients: int = 0,
    max_fanout: int = 100,
    clients_per_thread: int | None = None,
    max_concurrent_clients: int | None = None,
    **options: "Unpack[StackOptions]",
) -> ResourceManagingExecutorFactory:
    """Returns a factory of stacks that run everything in this process.

    Args:
      default_num_clients: The number of clients for computations whose arguments do not determine it.
      max_fanout: The maximum number of children of a composing executor. The value is checked but has no effect here:
        a local stack contains no composing executors.
      clients_per_thread: The minimum number of clients that a leaf thread processes at a time. By default, it is chosen
        from measured run times.
      max_concurrent_clients: The maximum number of functions that run at the same time, on clients and on the server,
        across all executors and callers of the factory. With 1, all functions run sequentially. By default, the limit
        is one per core for functions that compute; for functions that wait, it is 32 or four per core, whichever is
        larger.
      **options: See `StackOptions`.

    Raises:
      InvalidValueError: If a number is out of range.
    """
    stack = _local_stack(max_fanout, clients_per_thread, max_concurrent_clients, options)
    return ResourceManagingExecutorFactory(
        stack, default_num_clients=default_num_clients, max_threads=most_threads(max_concurrent_clients)
    )


class SizingExecutorFactory(ResourceManagingExecutorFactory):
    """Creates local stacks and counts the data sent to and received from clients; see `sizing_executor_factory`."""

    def __init__(self, stack: Stack, sizes: SizeInfo, default_num_clients: int) -> None:
        super().__init__(stack, default_num_clients=default_num_clients)
        self._sizes = sizes

    def get_size_info(self) -> SizeInfo:
        """Returns the current counts, summed over all executors of this factory."""
        return self._sizes


@takes_options(StackOptions, data_backend=None, wrap_clients=None)
def sizing_executor_factory(
    default_num_clients: int = 0,
    max_fanout: int = 100,
    clients_per_thread: int | None = None,
    max_concurrent_clients: int | None = None,
    **options: "Unpack[StackOptions]",
) -> SizingExecutorFactory:
    """Returns a local factory that counts bits and elements broadcast to clients and aggregated from them.

    Call `get_size_info()` on the factory to read the counts.

    Args:
      default_num_clients: See `local_executor_factory`.
      max_fanout: See `local_executor_factory`.
      clients_per_thread: See `local_executor_factory`.
      max_concurrent_clients: See `local_executor_factory`.
      **options: See `StackOptions`.

    Raises:
      InvalidValueError: If a number is out of range.
    """
    sizes = SizeInfo()
    inner = options.get("wrap_clients")

    def wrap(target: Executor) -> Executor:
        return SizingExecutor(target if inner is None else inner(target), sizes)

    options["wrap_clients"] = wrap
    stack = _local_stack(max_fanout, clients_per_thread, max_concurrent_clients, options)
    return SizingExecutorFactory(stack, sizes, default_num_clients)
