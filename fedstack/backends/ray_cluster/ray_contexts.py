"""Creates stacks that run client work in Ray actors, and contexts over them, in one call each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.computations.types.language_mistakes import set_default_context
from fedstack.contexts.contexts import AsyncExecutionContext, Progress, SyncExecutionContext
from fedstack.errors import InvalidValueError
from fedstack.executors.data_executor import DataBackend
from fedstack.foundations.number_checks import check_number, check_whole_number
from fedstack.foundations.public_names import defaults_of, takes_options
from fedstack.foundations.value_text import describe
from fedstack.transport.peers.retry import RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 has none


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
) -> BackendExecutorFactory:
    """Returns a factory of stacks that run client work in Ray actors, and the server's work here.

    Each client phase is spread evenly over the actors that are ready when it begins. Losing an actor costs the round:
    Ray restarts it, and the context runs the round again, with the same result. If `ray.init` has not been called when
    the first phase begins, it is called without arguments, as Ray's own functions do; `RAY_ADDRESS` names the cluster.

    Args:
      num_workers: How many actors. By default as many as the cluster has room for when the first phase begins; "auto"
        checks the room again before each phase.
      resources_per_worker: The resources of each actor, as in `{"CPU": 1, "GPU": 0.5}`; one CPU by default. Ray makes
        only the assigned devices visible to an actor.
      placement: "SPREAD" over the nodes, "PACK" onto few, a placement group, or another of Ray's scheduling strategies.
      runtime_env: Ray's description of the environment of the actors' processes.
      max_fanout: The most partial results that are merged in one place; if there are more, actors merge them first.
      max_workers: The most actors, if `num_workers` is not a number.
      start_seconds: How long to wait for actors that the cluster has room for, and for the first actor in any case.
      max_concurrent_clients: The most functions that an actor runs at the same time; by default one per CPU that it
        needs if they compute, and 32 if they wait, or four per core of its node if that is more.
      default_num_clients: The number of clients of computations whose arguments do not determine it.
      data_backend: Resolves `data` blocks at the server that are not functions.

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
            raise InvalidValueError(f"Expected {name} as a number or 'auto', found {describe(number)}; give a number")
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
    )


class RayOptions(TypedDict, total=False):
    """The options of the functions that create contexts over Ray, such as `create_sync_ray_execution_context`.

    Attributes:
      num_workers: How many actors; like the options below, as in `ray_executor_factory`.
      resources_per_worker: The resources of each actor, as in `{"CPU": 1, "GPU": 0.5}`.
      placement: "SPREAD", "PACK", a placement group, or another of Ray's scheduling strategies.
      runtime_env: Ray's description of the environment of the actors' processes.
      max_fanout: The most partial results that are merged in one place.
      max_workers: The most actors, if `num_workers` is not a number.
      start_seconds: How long to wait for the first actor.
      max_concurrent_clients: The most functions that an actor runs at the same time.
      default_num_clients: The number of clients of computations whose arguments do not determine it.
      data_backend: Resolves `data` blocks at the server that are not functions.
      retry_policy: How to handle retryable errors, including a lost actor; five attempts by default.
      progress: True to show how many clients are done, or a function that shows it.
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
    retry_policy: RetryPolicy | None
    progress: bool | Progress


_DEFAULTS = defaults_of(ray_executor_factory, SyncExecutionContext)


def _made(options: RayOptions) -> dict[str, Any]:
    """Returns the arguments of a context."""
    given: dict[str, Any] = {**options}
    policy, progress = given.pop("retry_policy", None), given.pop("progress", None)
    factory = ray_executor_factory(**given)
    return {"factory": factory, "retry_policy": policy, "progress": progress}


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
