"""Makes the stacks that run client work in actors of Ray."""

from collections.abc import Mapping
from typing import Any

from fedstack.backends.backend_factory import BackendExecutorFactory
from fedstack.errors import InvalidValueError
from fedstack.executors.data_executor import DataBackend
from fedstack.foundations.number_checks import check_number, check_whole_number
from fedstack.foundations.public_names import takes_options
from fedstack.foundations.value_text import describe


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
