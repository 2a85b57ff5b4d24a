"""Makes and installs execution contexts over local stacks, in one line each."""

from typing import TYPE_CHECKING, TypedDict

from fedstack.computations.types.language_mistakes import set_default_context
from fedstack.contexts.contexts import AsyncExecutionContext, Progress, SyncExecutionContext
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.foundations.public_names import defaults_of, options_for, takes_options
from fedstack.transport.peers.retry import RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 does not have it


class LocalOptions(TypedDict, total=False):
    """The options of the functions that make local contexts, such as `create_sync_local_execution_context`.

    Attributes:
      default_num_clients: The number of clients of computations whose arguments have none.
      max_fanout: The most children of a composing executor; without effect in a local stack.
      clients_per_thread: The smallest number of clients that a leaf thread takes at once; measured by default.
      max_concurrent_clients: The most functions that run at the same time, at clients and at the server, in all calls
        together; 1 makes all of them run one after the other. By default one per core if they compute, and 32 if they
        wait, or four per core if that is more.
      data_backend: Resolves `data` blocks that are not functions.
      retry_policy: What to do about retryable errors; five attempts by default.
      progress: True to show how many clients are done, or a function that shows it.
      debug: True to keep leaf functions on the caller's thread, one after the other, for a debugger; sync only.
    """

    default_num_clients: int
    max_fanout: int
    clients_per_thread: int | None
    max_concurrent_clients: int | None
    data_backend: DataBackend | None
    retry_policy: RetryPolicy | None
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
    """Returns a context that runs computations in this process, when they are called.

    Args:
      **options: See `LocalOptions`.

    Raises:
      InvalidValueError: If the value of an option is invalid.
      TypeError: If an option does not exist.
    """
    return SyncExecutionContext(_factory(options), **options_for(SyncExecutionContext, options))


@takes_options(LocalOptions, **_DEFAULTS)
def create_async_local_execution_context(**options: "Unpack[LocalOptions]") -> AsyncExecutionContext:
    """Returns a context that runs computations in this process, when the coroutine of a call is awaited.

    Args:
      **options: See `LocalOptions`.

    Raises:
      InvalidValueError: If the value of an option is invalid.
      TypeError: If an option does not exist.
    """
    if options.get("debug"):
        raise TypeError(
            "Expected debug in a sync context, found it in an async one; use create_sync_local_execution_context"
        )
    return AsyncExecutionContext(_factory(options), **options_for(AsyncExecutionContext, options))


@takes_options(LocalOptions, **_DEFAULTS)
def set_sync_local_execution_context(**options: "Unpack[LocalOptions]") -> None:
    """Makes a new sync local context this thread's default.

    Args:
      **options: See `LocalOptions`.
    """
    set_default_context(create_sync_local_execution_context(**options))


@takes_options(LocalOptions, **_DEFAULTS)
def set_async_local_execution_context(**options: "Unpack[LocalOptions]") -> None:
    """Makes a new async local context this thread's default.

    Args:
      **options: See `LocalOptions`.
    """
    set_default_context(create_async_local_execution_context(**options))
