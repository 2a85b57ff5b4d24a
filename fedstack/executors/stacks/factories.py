"""Puts executors together into stacks."""

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypedDict

from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor
from fedstack.computations.values.number_checks import check_whole_number
from fedstack.executors.concurrency.leaf_threads import SharedLeafThreads
from fedstack.executors.data_executor import DataBackend, DataExecutor
from fedstack.executors.federating_executor import FederatingExecutor
from fedstack.executors.leaf_executor import LeafExecutor
from fedstack.executors.reference_resolving_executor import ReferenceResolvingExecutor
from fedstack.executors.sequence_executor import SequenceExecutor
from fedstack.executors.sizing_executor import SizeInfo, SizingExecutor
from fedstack.executors.stacks.resource_factory import ResourceManagingExecutorFactory

if TYPE_CHECKING:
    from typing import Unpack


WrapClients = Callable[[Executor], Executor]
Stack = Callable[[CardinalitiesType], Executor]


class StackOptions(TypedDict, total=False):
    """What a local stack can be told beyond its number of clients.

    Attributes:
      max_concurrent_clients: The most clients that run at the same time; 1 makes them run one after the other.
      max_threads: The most threads that run leaf work, for all executors of a factory together; by default 32, or four
        per core if that is more.
      data_backend: Resolves `data` blocks that are not functions.
      wrap_clients: Makes a wrapper around the executor of client work: sizing, tracing, fault injection.
    """

    max_concurrent_clients: int | None
    max_threads: int | None
    data_backend: DataBackend | None
    wrap_clients: WrapClients | None


def check_options(options: Mapping[str, object], allowed: type) -> None:
    """Checks keyword options against a `TypedDict`.

    Raises:
      TypeError: If there is one that it does not have.
    """
    known = sorted(allowed.__annotations__)
    unknown = sorted(set(options) - set(known))
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 1)
        advice = f"; write {close[0]}" if close else "; leave it out"
        raise TypeError(f"Expected options among {', '.join(known)}, found {', '.join(unknown)}{advice}")


def _local_stack(max_fanout: int, clients_per_thread: int | None, options: StackOptions) -> Stack:
    """Returns what makes a local stack for a number of clients, after checking the numbers."""
    max_concurrent_clients, max_threads = options.get("max_concurrent_clients"), options.get("max_threads")
    data_backend, wrap_clients = options.get("data_backend"), options.get("wrap_clients")
    for name, number, least in (
        ("max_fanout", max_fanout, 2),
        ("clients_per_thread", clients_per_thread, 1),
        ("max_concurrent_clients", max_concurrent_clients, 1),
        ("max_threads", max_threads, 1),
    ):
        if number is not None:
            check_whole_number(name, number, least)

    threads = SharedLeafThreads(max_threads)

    def stack(cardinalities: CardinalitiesType) -> Executor:
        leaf = LeafExecutor(
            threads=threads,
            max_threads=max_threads,
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


def local_executor_factory(
    default_num_clients: int = 0,
    max_fanout: int = 100,
    clients_per_thread: int | None = None,
    max_concurrent_clients: int | None = None,
    *,
    max_threads: int | None = None,
    data_backend: DataBackend | None = None,
    wrap_clients: WrapClients | None = None,
) -> ResourceManagingExecutorFactory:
    """Returns a factory of stacks that run everything in this process.

    Args:
      default_num_clients: The number of clients of computations whose arguments do not tell.
      max_fanout: The most children of a composing executor; a local stack has none, whatever its number of clients.
      clients_per_thread: The smallest number of clients that a leaf thread takes at once; measured by default.
      max_concurrent_clients: The most clients that run at the same time; 1 makes them run one after the other.
      max_threads: The most threads that run leaf work, for all executors of the factory together; by default 32, or
        four per core if that is more.
      data_backend: Resolves `data` blocks that are not functions.
      wrap_clients: Makes a wrapper around the executor of client work: sizing, tracing, fault injection.

    Raises:
      InvalidValueError: If a number is out of its range.
    """
    options = StackOptions(
        max_concurrent_clients=max_concurrent_clients,
        max_threads=max_threads,
        data_backend=data_backend,
        wrap_clients=wrap_clients,
    )
    stack = _local_stack(max_fanout, clients_per_thread, options)
    return ResourceManagingExecutorFactory(stack, default_num_clients=default_num_clients)


class SizingExecutorFactory(ResourceManagingExecutorFactory):
    """A local factory that counts what goes to clients and what comes back; made by `sizing_executor_factory`."""

    def __init__(self, stack: Stack, sizes: SizeInfo, default_num_clients: int) -> None:
        super().__init__(stack, default_num_clients=default_num_clients)
        self._sizes = sizes

    def get_size_info(self) -> SizeInfo:
        """Returns the counts so far, over all executors of this factory."""
        return self._sizes


def sizing_executor_factory(
    default_num_clients: int = 0,
    max_fanout: int = 100,
    clients_per_thread: int | None = None,
    **options: "Unpack[StackOptions]",
) -> SizingExecutorFactory:
    """Returns a local factory that counts bits and elements broadcast to clients and aggregated from them.

    The arguments are those of `local_executor_factory`; `get_size_info()` has the counts.

    Raises:
      InvalidValueError: If a number is out of its range.
    """
    check_options(options, StackOptions)
    sizes = SizeInfo()
    inner = options.get("wrap_clients")

    def wrap(target: Executor) -> Executor:
        return SizingExecutor(target if inner is None else inner(target), sizes)

    options["wrap_clients"] = wrap
    stack = _local_stack(max_fanout, clients_per_thread, options)
    return SizingExecutorFactory(stack, sizes, default_num_clients)
