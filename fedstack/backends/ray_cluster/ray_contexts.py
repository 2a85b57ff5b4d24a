"""Makes the stacks that run client work in actors of Ray, and contexts over them, in one line each."""

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
    """Returns a factory of stacks that run the work of clients in actors of Ray, and the server's work here.

    Each client phase is spread evenly over the actors that are there when it begins. One that is lost costs the round:
    Ray starts it anew, and the context runs the round again, with the same result. If nobody has called `ray.init` when
    the first phase begins, it is called without arguments, as Ray's own functions do; `RAY_ADDRESS` says which cluster.

    Args:
      num_workers: How many actors. By default as many as the cluster has room for when the first phase begins; "auto"
        asks that again before each phase.
      resources_per_worker: What each actor needs, as in `{"CPU": 1, "GPU": 0.5}`; a CPU by default. Ray shows an actor
        the devices that it has been given.
      placement: "SPREAD" over the nodes, "PACK" onto few, a placement group, or another of Ray's scheduling strategies.
      runtime_env: Ray's description of what the processes of the actors need.
      max_fanout: The most partial results that are merged in one place; where there are more, actors merge them first.
      max_workers: The most actors, where `num_workers` is no number.
      start_seconds: How long to wait for actors that the cluster has room for, and for the first one in any case.
      max_concurrent_clients: The most functions that run at the same time in an actor; by default one per CPU that it
        needs if they compute, and 32 if they wait, or four per core of its node if that is more.
      default_num_clients: The number of clients of computations whose arguments do not tell.
      data_backend: Resolves `data` blocks at the server that are not functions.

    Raises:
      ImportError: If Ray is not installed (extra `ray`).
      InvalidValueError: If an argument cannot be right.
    """
    from fedstack.backends.ray_cluster.ray_api import actor_options, checked_resources  # which imports Ray
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
    """What the functions take that make contexts over Ray, such as `create_sync_ray_execution_context`.

    Attributes:
      num_workers: How many actors; as of `ray_executor_factory`, like what follows.
      resources_per_worker: What each actor needs, as in `{"CPU": 1, "GPU": 0.5}`.
      placement: "SPREAD", "PACK", a placement group, or another of Ray's scheduling strategies.
      runtime_env: Ray's description of what the processes of the actors need.
      max_fanout: The most partial results that are merged in one place.
      max_workers: The most actors, where `num_workers` is no number.
      start_seconds: How long to wait for the first actor.
      max_concurrent_clients: The most functions that run at the same time in an actor.
      default_num_clients: The number of clients of computations whose arguments do not tell.
      data_backend: Resolves `data` blocks at the server that are not functions.
      retry_policy: What to do about retryable errors, a lost actor's among them; five attempts by default.
      progress: True to show how many clients are done, or what shows it.
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
    """Returns a context that runs client work in actors of Ray, when a computation is called.

    Args:
      **options: See `RayOptions`.
    """
    return SyncExecutionContext(**_made(options))


@takes_options(RayOptions, **_DEFAULTS)
def create_async_ray_execution_context(**options: "Unpack[RayOptions]") -> AsyncExecutionContext:
    """Returns a context that runs client work in actors of Ray, when the coroutine of a call is awaited.

    Args:
      **options: See `RayOptions`.
    """
    return AsyncExecutionContext(**_made(options))


@takes_options(RayOptions, **_DEFAULTS)
def set_sync_ray_execution_context(**options: "Unpack[RayOptions]") -> None:
    """Makes a new sync context over Ray this thread's default.

    Args:
      **options: See `RayOptions`.
    """
    set_default_context(create_sync_ray_execution_context(**options))


@takes_options(RayOptions, **_DEFAULTS)
def set_async_ray_execution_context(**options: "Unpack[RayOptions]") -> None:
    """Makes a new async context over Ray this thread's default.

    Args:
      **options: See `RayOptions`.
    """
    set_default_context(create_async_ray_execution_context(**options))
