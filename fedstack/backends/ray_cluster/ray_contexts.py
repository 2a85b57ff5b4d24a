"""Defines functions that create executor stacks and contexts that run client work in Ray actors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.computations.types.language import set_default_context
from fedstack.contexts.contexts import AsyncExecutionContext, Progress, SyncExecutionContext
from fedstack.errors import InvalidValueError
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.survivors.client_failures import ClientFailures
from fedstack.foundations.number_checks import check_number, check_whole_number
from fedstack.foundations.public_names import defaults_of, takes_options
from fedstack.foundations.value_text import describe
from fedstack.transport.peers.retry import RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 does not have it


@takes_options()
def ray_executor_factory(
    num_workers: "int | str | None" = None,
    resources_per_worker: Mapping[str, float] | None = None,
    placement: Any = "SPREAD",
    runtime_env: Mapping[str, Any] | None = None,
    max_fanout: int = 100,
    *,
    max_workers: int | None = None,
    start_seconds: float = 60.0,
    max_concurrent_clients: int | None = None,
    default_num_clients: int = 0,
    data_backend: DataBackend | None = None,
    mixed: bool = False,
) -> BackendExecutorFactory:
    """Returns a factory of executor stacks that run client work in Ray actors, and server work in this process.

    Each client phase is divided evenly among the actors that are ready when the phase starts. If an actor is lost, the
    current round fails. Ray restarts the actor, and the context repeats the round with the same result.

    If Ray has not been initialized when the first phase starts, `ray.init` is called without arguments. It connects to
    the cluster that the environment variable `RAY_ADDRESS` names, or starts Ray on this machine.

    Args:
      num_workers: The number of actors. By default, as many as the cluster has room for when the first phase starts.
        "auto" adapts the number before each phase.
      resources_per_worker: The resources of each actor, such as `{"CPU": 1, "GPU": 0.5}`; by default one CPU. Ray
        makes only the assigned devices visible to an actor.
      placement: "SPREAD" to spread the actors over the nodes, "PACK" to use few nodes, a placement group, or another
        scheduling strategy of Ray.
      runtime_env: The Ray runtime environment of the actors' processes.
      max_fanout: The maximum number of partial results that are merged in one place. If there are more, actors merge
        some of them first.
      max_workers: The maximum number of actors if `num_workers` is not a number.
      start_seconds: How long to wait for actors that the cluster has room for, and in any case for the first actor.
      max_concurrent_clients: The maximum number of functions that an actor runs at the same time. By default, one per
        CPU in `resources_per_worker` for functions that compute. For functions that wait, 32, or four per core of the
        node if that is more.
      default_num_clients: The number of clients for computations whose arguments do not determine it.
      data_backend: Resolves `data` blocks in server work, except blocks with a function type.
      mixed: Whether processes may compile JAX functions in another way than this one; see `remote_executor_factory`.

    Raises:
      ImportError: If Ray is not installed (extra `ray`).
      InvalidValueError: If an argument is invalid.
    """
    from fedstack.backends.ray_cluster.ray_api import actor_options, checked_resources  # imports Ray
    from fedstack.backends.ray_cluster.ray_backend import RayBackend
    from fedstack.backends.ray_cluster.ray_room import Room
    from fedstack.backends.ray_cluster.ray_workers import RayWorkers

    for name, number in (("num_workers", num_workers), ("max_workers", max_workers)):
        if isinstance(number, str) and (name, number) != ("num_workers", "auto"):
            raise InvalidValueError(
                f"Expected {name} to be a number, or 'auto' for num_workers, found {describe(number)}; pass a number"
            )
        if number is not None and number != "auto":
            check_whole_number(name, number, 1)
    check_number("start_seconds", start_seconds)
    needs = checked_resources(resources_per_worker)
    workers = RayWorkers(
        num_workers,
        max_workers,
        Room(needs, placement),
        actor_options(needs, placement, runtime_env),
        start_seconds,
    )
    return BackendExecutorFactory(
        RayBackend(workers, cores=max(1, int(needs.get("CPU", 0)))),
        default_num_clients,
        max_fanout,
        max_concurrent_clients=max_concurrent_clients,
        data_backend=data_backend,
        mixed=mixed,
    )


class RayOptions(TypedDict, total=False):
    """The options of functions that create contexts over Ray, such as `create_sync_ray_execution_context`.

    All but the last two are explained in `ray_executor_factory`.

    Attributes:
      num_workers: The number of actors.
      resources_per_worker: The resources of each actor, such as `{"CPU": 1, "GPU": 0.5}`.
      placement: "SPREAD", "PACK", a placement group, or another scheduling strategy of Ray.
      runtime_env: The Ray runtime environment of the actors' processes.
      max_fanout: The maximum number of partial results that are merged in one place.
      max_workers: The maximum number of actors if `num_workers` is not a number.
      start_seconds: How long to wait for the first actor, in seconds.
      max_concurrent_clients: The maximum number of functions that an actor runs at the same time.
      default_num_clients: The number of clients for computations whose arguments do not determine it.
      data_backend: Resolves `data` blocks in server work, except blocks with a function type.
      mixed: Whether actors may compile JAX functions in another way than this process.
      retry_policy: How to retry after retryable errors, such as the loss of an actor; by default up to five attempts.
      client_failures: How many clients may fail; see `ClientFailures`. By default, an error of a client ends the call.
      progress: True to display the number of completed clients, or a function that displays it.
    """

    num_workers: "int | str | None"
    resources_per_worker: Mapping[str, float] | None
    placement: Any
    runtime_env: Mapping[str, Any] | None
    max_fanout: int
    max_workers: int | None
    start_seconds: float
    max_concurrent_clients: int | None
    default_num_clients: int
    data_backend: DataBackend | None
    mixed: bool
    retry_policy: RetryPolicy | None
    client_failures: ClientFailures | None
    progress: bool | Progress


_DEFAULTS = defaults_of(ray_executor_factory, SyncExecutionContext)


def _made(options: RayOptions) -> dict[str, Any]:
    """Converts options to the arguments of a context."""
    given: dict[str, Any] = {**options}
    chosen = {name: given.pop(name, None) for name in ("retry_policy", "progress", "client_failures")}
    return {"factory": ray_executor_factory(**given), **chosen}


@takes_options(RayOptions, **_DEFAULTS)
def create_sync_ray_execution_context(**options: "Unpack[RayOptions]") -> SyncExecutionContext:
    """Returns a context that runs client work in Ray actors when a computation is called.

    Args:
      **options: See `RayOptions`.
    """
    return SyncExecutionContext(**_made(options))


@takes_options(RayOptions, **_DEFAULTS)
def create_async_ray_execution_context(**options: "Unpack[RayOptions]") -> AsyncExecutionContext:
    """Returns a context that runs client work in Ray actors when the coroutine of a call is awaited.

    Args:
      **options: See `RayOptions`.
    """
    return AsyncExecutionContext(**_made(options))


@takes_options(RayOptions, **_DEFAULTS)
def set_sync_ray_execution_context(**options: "Unpack[RayOptions]") -> None:
    """Sets a new sync context over Ray as this thread's default.

    Args:
      **options: See `RayOptions`.
    """
    set_default_context(create_sync_ray_execution_context(**options))


@takes_options(RayOptions, **_DEFAULTS)
def set_async_ray_execution_context(**options: "Unpack[RayOptions]") -> None:
    """Sets a new async context over Ray as this thread's default.

    Args:
      **options: See `RayOptions`.
    """
    set_default_context(create_async_ray_execution_context(**options))
