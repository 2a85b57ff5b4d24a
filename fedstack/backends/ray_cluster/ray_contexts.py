"""Makes and installs execution contexts over actors of Ray, in one line each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from fedstack.backends.ray_cluster.ray_factory import ray_executor_factory
from fedstack.computations.types.language_mistakes import set_default_context
from fedstack.contexts.contexts import AsyncExecutionContext, Progress, SyncExecutionContext
from fedstack.executors.data_executor import DataBackend
from fedstack.foundations.public_names import defaults_of, takes_options
from fedstack.transport.peers.retry import RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 has none


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
