"""Defines functions that create executor stacks and contexts that run client work on workers behind gRPC."""

from typing import TYPE_CHECKING, TypedDict

from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.backends.workers_backend import WorkersBackend
from fedstack.computations.types.language import set_default_context
from fedstack.contexts.contexts import AsyncExecutionContext, Progress, SyncExecutionContext
from fedstack.errors import InvalidValueError
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.executors.survivors.client_failures import ClientFailures
from fedstack.foundations.number_checks import MOST_CLIENTS, check_bool, check_number, check_whole_number
from fedstack.foundations.public_names import defaults_of, options_for, takes_options
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Transport
from fedstack.transport.peers.retry import RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 does not have it


@takes_options()
def remote_executor_factory(
    targets: WorkerTargets,
    default_num_clients: int = 0,
    max_fanout: int = 100,
    dispose_batch_size: int = 20,
    stream_structs: bool = False,
    *,
    credentials: ClientCredentials | None = None,
    transport: Transport = "auto",
    connect_seconds: float = 10.0,
    data_backend: DataBackend | None = None,
    mixed: bool = False,
) -> BackendExecutorFactory:
    """Returns a factory of executor stacks that run client work on workers, and server work in this process.

    Each client phase is divided evenly among the workers that are ready when the phase starts. If a worker is lost, the
    clients whose results it has not handed in run again on the remaining workers, with the same result.

    Args:
      targets: The workers: addresses (`localhost:8000`, `grpcs://host:8000`, `unix:/path`), a `ClusterSpec` or a job of
        a cluster, channels, stubs, resolvers of addresses, or a `local_worker_pool`. Prefer addresses to channels: an
        address is used as soon as its worker is reachable, but a channel that has failed redials on gRPC's own
        schedule, with pauses of up to two minutes.
      default_num_clients: The number of clients for computations whose arguments do not determine it.
      max_fanout: The maximum number of partial results that are merged in one place.
      dispose_batch_size: The number of values that a remote executor disposes of in one call.
      stream_structs: Whether to send structs leaf by leaf to peers without extensions.
      credentials: The certificates and the token for workers that are specified as addresses. Channels and stubs have
        their own credentials.
      transport: How to reach workers that are specified as addresses: `"stream"`, `"grpc"`, or `"auto"` for streams
        where they can be reached, and otherwise gRPC.
      connect_seconds: How long to wait for the first worker, in seconds.
      data_backend: Resolves `data` blocks in server work, except blocks with a function type.
      mixed: Whether the results of JAX functions may depend on which worker ran a client, since the workers have other
        versions of jaxlib, flags of XLA, devices or processors than this process. By default a call on such a worker
        raises a `CarrierError`.

    Raises:
      InvalidValueError: If an address, the transport or a number is invalid.
      ClosedError: If the pool is closed.
    """
    check_whole_number("default_num_clients", default_num_clients, 0, MOST_CLIENTS)
    check_whole_number("max_fanout", max_fanout, 2)
    check_whole_number("dispose_batch_size", dispose_batch_size, 1)
    check_number("connect_seconds", connect_seconds, endless=True)
    stubs = make_stubs(targets, credentials, transport)
    if not stubs:
        raise InvalidValueError("Expected at least one worker, found none; pass an address such as 'localhost:8000'")
    backend = WorkersBackend(
        Workers([Worker(stub) for stub in stubs], connect_seconds),
        dispose_batch_size,
        check_bool("stream_structs", stream_structs),
        source=targets,
    )
    return BackendExecutorFactory(backend, default_num_clients, max_fanout, data_backend=data_backend, mixed=mixed)


class RemoteOptions(TypedDict, total=False):
    """The options of functions that create remote contexts, such as `create_sync_remote_execution_context`.

    Attributes:
      default_num_clients: The number of clients for computations whose arguments do not determine it.
      max_fanout: The maximum number of partial results that are merged in one place.
      dispose_batch_size: The number of values that a remote executor disposes of in one call.
      stream_structs: Whether to send structs leaf by leaf to peers without extensions.
      credentials: The certificates and the token for workers that are specified as addresses.
      transport: How to reach workers that are specified as addresses: `"stream"`, `"grpc"`, or `"auto"` for streams
        where they can be reached, and otherwise gRPC.
      connect_seconds: How long to wait for the first worker, in seconds.
      data_backend: Resolves `data` blocks in server work, except blocks with a function type.
      mixed: Whether workers may compile JAX functions in another way than this process.
      retry_policy: How to retry after retryable errors, such as the loss of a worker; by default up to five attempts.
      client_failures: How many clients may fail; see `ClientFailures`. By default, an error of a client ends the call.
      progress: True to display the number of completed clients, or a function that displays it.
    """

    default_num_clients: int
    max_fanout: int
    dispose_batch_size: int
    stream_structs: bool
    credentials: ClientCredentials | None
    transport: Transport
    connect_seconds: float
    data_backend: DataBackend | None
    mixed: bool
    retry_policy: RetryPolicy | None
    client_failures: ClientFailures | None
    progress: bool | Progress


_DEFAULTS = defaults_of(remote_executor_factory, SyncExecutionContext)


def _factory(targets: WorkerTargets, options: RemoteOptions) -> BackendExecutorFactory:
    return remote_executor_factory(targets, **options_for(remote_executor_factory, options))


@takes_options(RemoteOptions, **_DEFAULTS)
def create_sync_remote_execution_context(
    targets: WorkerTargets, **options: "Unpack[RemoteOptions]"
) -> SyncExecutionContext:
    """Returns a context that runs client work on workers when a computation is called.

    Args:
      targets: The workers; see `remote_executor_factory`.
      **options: See `RemoteOptions`.
    """
    return SyncExecutionContext(_factory(targets, options), **options_for(SyncExecutionContext, options))


@takes_options(RemoteOptions, **_DEFAULTS)
def create_async_remote_execution_context(
    targets: WorkerTargets, **options: "Unpack[RemoteOptions]"
) -> AsyncExecutionContext:
    """Returns a context that runs client work on workers when the coroutine of a call is awaited.

    Args:
      targets: The workers; see `remote_executor_factory`.
      **options: See `RemoteOptions`.
    """
    return AsyncExecutionContext(_factory(targets, options), **options_for(AsyncExecutionContext, options))


@takes_options(RemoteOptions, **_DEFAULTS)
def set_sync_remote_execution_context(targets: WorkerTargets, **options: "Unpack[RemoteOptions]") -> None:
    """Sets a new sync remote context as this thread's default.

    Args:
      targets: The workers; see `remote_executor_factory`.
      **options: See `RemoteOptions`.
    """
    set_default_context(create_sync_remote_execution_context(targets, **options))


@takes_options(RemoteOptions, **_DEFAULTS)
def set_async_remote_execution_context(targets: WorkerTargets, **options: "Unpack[RemoteOptions]") -> None:
    """Sets a new async remote context as this thread's default.

    Args:
      targets: The workers; see `remote_executor_factory`.
      **options: See `RemoteOptions`.
    """
    set_default_context(create_async_remote_execution_context(targets, **options))
