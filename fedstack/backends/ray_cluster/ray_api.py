"""Wraps Ray, which is optional and mostly untyped. No other module imports Ray."""

import contextlib
import itertools
import threading
from collections.abc import Generator, Mapping
from typing import Any, cast

from fedstack.computations.leaves.function_pickles import Reduced, register_reducer
from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_number
from fedstack.foundations.value_text import describe

try:
    import ray as _ray
    from ray import exceptions as _exceptions
    from ray._private import auto_init_hook as _hook
    from ray._private import worker as _ray_worker
    from ray.runtime_env import RuntimeEnv as _RuntimeEnv
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import (
        NodeAffinitySchedulingStrategy,
        NodeLabelSchedulingStrategy,
        PlacementGroupSchedulingStrategy,
    )
except ImportError as error:  # a folder named `ray` may be importable: Ray itself creates /tmp/ray
    if error.name != "ray":
        raise
    raise ImportError('Ray is not installed: pip install "fedstack[ray]"') from error

# References to objects and handles of actors are untyped.
Ref = Any
Handle = Any
ray: Any = _ray
exceptions: Any = _exceptions
RuntimeEnv: Any = _RuntimeEnv
_worker: Any = _ray_worker

# The errors that mean that an actor, or an object that it uses, is gone with its process, its node or its owner.
LOSSES: tuple[type[Exception], ...] = (
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.NodeDiedError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
    exceptions.RpcError,
    exceptions.TaskCancelledError,
)
_STRATEGIES = (PlacementGroupSchedulingStrategy, NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy)
# The predefined resources of Ray, with the actor options that request them. Any other name is a custom resource.
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def _reduced_ref(ref: Ref) -> Reduced:
    """Pickles a reference that a function has captured, with its owner, so that the reference can be resolved."""
    return ray.cloudpickle.CloudPickler.dispatch[type(ref)](ref)


register_reducer(ray.ObjectRef, _reduced_ref)


class _Starting:
    """Prevents Ray's functions from starting Ray automatically. Ray's setting for this applies to all threads."""

    def __init__(self) -> None:
        self._hook = cast(Any, _hook)
        self._is_on = self._hook.enable_auto_connect
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """See `after_fork`."""
        self._lock = threading.Lock()
        self._blocks = 0

    @contextlib.contextmanager
    def prevented(self) -> Generator[None, None, None]:
        """Prevents automatic starts during a block, since another thread may shut down the current Ray session."""
        with self._lock:
            self._blocks += 1
            self._hook.enable_auto_connect = False
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                self._hook.enable_auto_connect = self._is_on and not self._blocks


starting = _Starting()
# Ray shuts down when the thread that started it ends, so this thread never ends.
_starters = LeafThreads(1, idle_seconds=threading.TIMEOUT_MAX, work_ends=True)


def start() -> None:
    """Starts Ray for the lifetime of this process, or connects to the cluster that `RAY_ADDRESS` names."""
    _starters.submit(ray.init).result()


def session() -> object:
    """Returns an object that identifies the Ray session of this process, or `None` if Ray is not running.

    The lookup calls no functions of Ray's native core, because Ray ends a process that calls its core during shutdown.
    """
    if not ray.is_initialized():
        return None
    return _worker.global_worker.node or ray.util.client.ray.get_context().client_worker


def wait_until_gone(seconds: float = 10.0) -> None:
    """Waits until Ray has shut down. Dropping an `ObjectRef` during the shutdown would call Ray's native core."""
    for _ in Deadline(seconds).attempts_blocking(itertools.repeat(0.01)):
        if ray.is_initialized() or not hasattr(_worker.global_worker, "core_worker"):
            break


def checked_resources(resources: Mapping[str, float] | None) -> dict[str, float]:
    """Returns the resources that a worker needs; by default one CPU.

    Raises:
      InvalidValueError: If `resources` does not map names of resources to amounts.
    """
    if resources is None:
        return {"CPU": 1}
    if not isinstance(cast(object, resources), Mapping):
        raise InvalidValueError(
            f"Expected resources_per_worker to be a dict, found {describe(resources)}; pass {{'GPU': 0.5}}, for example"
        )
    known = {name.lower(): name for name in _OPTIONS}
    for name, amount in resources.items():
        if not isinstance(cast(object, name), str):
            raise InvalidValueError(
                f"Expected the keys of resources_per_worker to be strings, found {describe(name)}; pass "
                "{'GPU': 0.5}, for example"
            )
        meant = known.get(name.lower())
        if meant not in (None, name):
            raise InvalidValueError(
                f"Expected {meant!r} in resources_per_worker, found {name!r}; use Ray's spelling, {meant}"
            )
        check_number(f"resources_per_worker[{name!r}]", amount)
    return dict(resources)


def bundles_of(placement: object) -> "list[dict[str, float]] | None":
    """Returns the resources that a placement group reserves, or `None` for any other placement."""
    return cast(Any, placement).bundle_specs if isinstance(placement, PlacementGroup) else None


def is_removed(placement: object) -> bool:
    """Returns whether a placement is a placement group that has been removed."""
    if not isinstance(placement, PlacementGroup):
        return False
    return ray.util.placement_group_table(placement).get("state", "REMOVED") == "REMOVED"  # unknown to this Ray


def actor_options(resources: Mapping[str, float], placement: object, runtime_env: object) -> dict[str, object]:
    """Returns the Ray options of an actor.

    Args:
      resources: The amount of each resource that the actor needs.
      placement: "SPREAD", "PACK", a placement group, or another scheduling strategy of Ray.
      runtime_env: The runtime environment of the actor's process; `None` for the driver's environment.

    Raises:
      InvalidValueError: If `placement` or `runtime_env` is invalid.
    """
    options: dict[str, object] = {"num_cpus": 0}
    custom = {name: amount for name, amount in resources.items() if name not in _OPTIONS}
    options.update({_OPTIONS[name]: amount for name, amount in resources.items() if name in _OPTIONS})
    if custom:
        options["resources"] = custom
    if isinstance(placement, PlacementGroup):
        placement = PlacementGroupSchedulingStrategy(placement_group=placement)
    elif placement not in ("SPREAD", "PACK", None) and not isinstance(placement, _STRATEGIES):
        raise InvalidValueError(
            "Expected placement to be 'SPREAD', 'PACK', a placement group or a scheduling strategy of Ray, found "
            f"{describe(placement)}; pass 'SPREAD', for example"
        )
    if not isinstance(runtime_env, Mapping | None):
        raise InvalidValueError(
            f"Expected runtime_env to be a dict, found {describe(runtime_env)}; pass, for example, "
            "{'working_dir': '.'}"
        )
    try:
        RuntimeEnv(**cast("dict[str, Any]", runtime_env or {}))
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"Ray rejects the runtime_env: {str(error).rstrip('.')}; fix the runtime_env"
        ) from error
    # Ray's default strategy packs actors onto few nodes.
    options["scheduling_strategy"] = "DEFAULT" if placement == "PACK" else placement
    if runtime_env is not None:
        options["runtime_env"] = runtime_env
    # Ray restarts actors that have ended, but does not repeat their work. fedstack repeats work where this is allowed.
    return {**options, "max_restarts": -1, "max_task_retries": 0}
