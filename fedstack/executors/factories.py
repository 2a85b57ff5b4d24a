"""Puts executors together into stacks."""

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
    """What a local stack can be told beyond its numbers.

    Attributes:
      data_backend: Resolves `data` blocks that are not functions.
      wrap_clients: Makes a wrapper around the executor of client work: sizing, tracing, fault injection.
    """

    data_backend: DataBackend | None
    wrap_clients: WrapClients | None


def _local_stack(
    max_fanout: int, clients_per_thread: int | None, max_concurrent_clients: int | None, options: StackOptions
) -> Stack:
    """Returns what makes a local stack for a number of clients, after checking the numbers."""
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
    """Returns what runs all that has no placement, over a leaf executor."""
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
      default_num_clients: The number of clients of computations whose arguments do not tell.
      max_fanout: The most children of a composing executor; a local stack has none, whatever its number of clients.
      clients_per_thread: The smallest number of clients that a leaf thread takes at once; measured by default.
      max_concurrent_clients: The most functions that run at the same time, at clients and at the server, for all
        executors and callers of the factory together; 1 makes all of them run one after the other. By default one per
        core if they compute, and 32 if they wait, or four per core if that is more.
      **options: See `StackOptions`.

    Raises:
      InvalidValueError: If a number is out of its range.
    """
    stack = _local_stack(max_fanout, clients_per_thread, max_concurrent_clients, options)
    return ResourceManagingExecutorFactory(
        stack, default_num_clients=default_num_clients, max_threads=most_threads(max_concurrent_clients)
    )


class SizingExecutorFactory(ResourceManagingExecutorFactory):
    """A local factory that counts what goes to clients and what comes back; made by `sizing_executor_factory`."""

    def __init__(self, stack: Stack, sizes: SizeInfo, default_num_clients: int) -> None:
        super().__init__(stack, default_num_clients=default_num_clients)
        self._sizes = sizes

    def get_size_info(self) -> SizeInfo:
        """Returns the counts so far, over all executors of this factory."""
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

    `get_size_info()` has the counts.

    Args:
      default_num_clients: As of `local_executor_factory`.
      max_fanout: As of `local_executor_factory`.
      clients_per_thread: As of `local_executor_factory`.
      max_concurrent_clients: As of `local_executor_factory`.
      **options: See `StackOptions`.

    Raises:
      InvalidValueError: If a number is out of its range.
    """
    sizes = SizeInfo()
    inner = options.get("wrap_clients")

    def wrap(target: Executor) -> Executor:
        return SizingExecutor(target if inner is None else inner(target), sizes)

    options["wrap_clients"] = wrap
    stack = _local_stack(max_fanout, clients_per_thread, max_concurrent_clients, options)
    return SizingExecutorFactory(stack, sizes, default_num_clients)
