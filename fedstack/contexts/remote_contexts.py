"""Makes and installs execution contexts over workers in other processes, in one line each."""

from typing import TYPE_CHECKING, TypedDict

from fedstack.computations.types.language_mistakes import set_default_context
from fedstack.contexts.contexts import AsyncExecutionContext, Progress, SyncExecutionContext
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.stacks.remote_factory import RemoteExecutorFactory, WorkerTargets, remote_executor_factory
from fedstack.foundations.public_names import defaults_of, options_for, takes_options
from fedstack.transport.peers.retry import RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 does not have it

    from fedstack.transport.grpc.credentials import ClientCredentials


class RemoteOptions(TypedDict, total=False):
    """The options of the functions that make remote contexts, such as `create_sync_remote_execution_context`.

    Attributes:
      default_num_clients: The number of clients of computations whose arguments have none.
      max_fanout: The most children of one composing executor.
      dispose_batch_size: How many values a remote executor disposes of in one call.
      stream_structs: Whether structs go to peers without extensions leaf by leaf.
      credentials: Certificates and the token for the workers.
      connect_seconds: How long to wait for the first worker.
      data_backend: Resolves `data` blocks at the server that are not functions.
      retry_policy: What to do about retryable errors, a dead worker's among them; five attempts by default.
      progress: True to show how many clients are done, or a function that shows it.
    """

    default_num_clients: int
    max_fanout: int
    dispose_batch_size: int
    stream_structs: bool
    credentials: "ClientCredentials | None"
    connect_seconds: float
    data_backend: DataBackend | None
    retry_policy: RetryPolicy | None
    progress: bool | Progress


_DEFAULTS = defaults_of(remote_executor_factory, SyncExecutionContext)


def _factory(targets: WorkerTargets, options: RemoteOptions) -> RemoteExecutorFactory:
    return remote_executor_factory(targets, **options_for(remote_executor_factory, options))


@takes_options(RemoteOptions, **_DEFAULTS)
def create_sync_remote_execution_context(
    targets: WorkerTargets, **options: "Unpack[RemoteOptions]"
) -> SyncExecutionContext:
    """Returns a context that runs client work on workers, when a computation is called.

    Args:
      targets: The workers; see `remote_executor_factory`.
      **options: See `RemoteOptions`.
    """
    return SyncExecutionContext(_factory(targets, options), **options_for(SyncExecutionContext, options))


@takes_options(RemoteOptions, **_DEFAULTS)
def create_async_remote_execution_context(
    targets: WorkerTargets, **options: "Unpack[RemoteOptions]"
) -> AsyncExecutionContext:
    """Returns a context that runs client work on workers, when the coroutine of a call is awaited.

    Args:
      targets: The workers; see `remote_executor_factory`.
      **options: See `RemoteOptions`.
    """
    return AsyncExecutionContext(_factory(targets, options), **options_for(AsyncExecutionContext, options))


@takes_options(RemoteOptions, **_DEFAULTS)
def set_sync_remote_execution_context(targets: WorkerTargets, **options: "Unpack[RemoteOptions]") -> None:
    """Makes a new sync remote context this thread's default.

    Args:
      targets: The workers; see `remote_executor_factory`.
      **options: See `RemoteOptions`.
    """
    set_default_context(create_sync_remote_execution_context(targets, **options))


@takes_options(RemoteOptions, **_DEFAULTS)
def set_async_remote_execution_context(targets: WorkerTargets, **options: "Unpack[RemoteOptions]") -> None:
    """Makes a new async remote context this thread's default.

    Args:
      targets: The workers; see `remote_executor_factory`.
      **options: See `RemoteOptions`.
    """
    set_default_context(create_async_remote_execution_context(targets, **options))
