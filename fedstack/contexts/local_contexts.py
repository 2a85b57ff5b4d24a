"""Creates and installs execution contexts that run computations in this process."""

from typing import TYPE_CHECKING, TypedDict

from fedstack.computations.types.language import set_default_context
from fedstack.contexts.contexts import AsyncExecutionContext, Progress, SyncExecutionContext
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.executors.survivors.client_failures import ClientFailures
from fedstack.foundations.public_names import defaults_of, options_for, takes_options
from fedstack.transport.peers.retry import RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 does not have it


class LocalOptions(TypedDict, total=False):
    """The options of the functions that create local contexts, such as `create_sync_local_execution_context`.

    Attributes:
      default_num_clients: The number of clients for computations whose arguments do not determine the number.
      max_fanout: The maximum number of children of a composing executor. It has no effect in a local stack.
      clients_per_thread: The minimum number of clients that a leaf thread processes at once. By default, it is chosen
        from measured run times.
      max_concurrent_clients: The maximum number of functions that run concurrently, on clients and on the server, in
        all calls together; 1 runs them sequentially. The default is one per core for functions that compute. For
        functions that wait, the default is 32 or four per core, whichever is larger.
      data_backend: The backend for resolving `data` blocks that are not functions.
      retry_policy: How to retry after retryable errors. By default, five attempts are made.
      client_failures: How many clients may fail; see `ClientFailures`. By default, an error of a client ends the call.
      progress: True to show how many clients are done, or a function that displays the progress.
      debug: True to run leaf functions sequentially on the caller's thread, for a debugger. Only for sync contexts.
    """

    default_num_clients: int
    max_fanout: int
    clients_per_thread: int | None
    max_concurrent_clients: int | None
    data_backend: DataBackend | None
    retry_policy: RetryPolicy | None
    client_failures: ClientFailures | None
    progress: bool | Progress
    debug: bool


_DEFAULTS = defaults_of(local_executor_factory, SyncExecutionContext)


def _factory(options: LocalOptions) -> ResourceManagingExecutorFactory:
    chosen = options_for(local_executor_factory, options)
    if options.get("debug"):
        chosen["max_concurrent_clients"] = 1
    return local_executor_factory(**chosen)


@takes_options(LocalOptions, **_DEFAULTS)
def create_sync_local_execution_context(**options: "Unpack[LocalOptions]") -> SyncExecutionContext:
    """Returns a context that runs a computation in this process when it is called.

    Args:
      **options: See `LocalOptions`.

    Raises:
      InvalidValueError: If the value of an option is invalid.
      TypeError: If an option does not exist.
    """
    return SyncExecutionContext(_factory(options), **options_for(SyncExecutionContext, options))


@takes_options(LocalOptions, **_DEFAULTS)
def create_async_local_execution_context(**options: "Unpack[LocalOptions]") -> AsyncExecutionContext:
    """Returns a context in which awaiting a call of a computation runs the computation in this process.

    Args:
      **options: See `LocalOptions`.

    Raises:
      InvalidValueError: If the value of an option is invalid.
      TypeError: If an option does not exist.
    """
    if options.get("debug"):
        raise TypeError(
            "The option debug is not available in an async context; use create_sync_local_execution_context"
        )
    return AsyncExecutionContext(_factory(options), **options_for(AsyncExecutionContext, options))


@takes_options(LocalOptions, **_DEFAULTS)
def set_sync_local_execution_context(**options: "Unpack[LocalOptions]") -> None:
    """Creates a sync local context and sets it as this thread's default.

    Args:
      **options: See `LocalOptions`.
    """
    set_default_context(create_sync_local_execution_context(**options))


@takes_options(LocalOptions, **_DEFAULTS)
def set_async_local_execution_context(**options: "Unpack[LocalOptions]") -> None:
    """Creates an async local context and sets it as this thread's default.

    Args:
      **options: See `LocalOptions`.
    """
    set_default_context(create_async_local_execution_context(**options))
