"""The only module that imports Ray, which is optional and mostly untyped."""

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

# References to objects and handles of actors are untyped as well.
Ref = Any
Handle = Any
ray: Any = _ray
exceptions: Any = _exceptions
RuntimeEnv: Any = _RuntimeEnv
_worker: Any = _ray_worker

# The actor, or an object that it uses, is gone with its process, its node or the process that created it.
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
# Ray's own names of resources, and the actor options that request them; Ray accepts any other name too.
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def _reduced_ref(ref: Ref) -> Reduced:
    """Pickles a reference captured by a function, along with its owner, without which it could not be resolved."""
    return ray.cloudpickle.CloudPickler.dispatch[type(ref)](ref)


register_reducer(ray.ObjectRef, _reduced_ref)


class _Starting:
    """Prevents Ray's functions from starting Ray by themselves. Ray's switch for that applies to all threads."""

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
        """Prevents Ray from being started during the block: another thread may have shut down the previous Ray."""
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
# Ray ends with the thread that started it, so this thread stays.
_starters = LeafThreads(1, idle_seconds=threading.TIMEOUT_MAX, work_ends=True)


def start() -> None:
    """Starts a Ray that lives as long as this process, or connects to the cluster that `RAY_ADDRESS` names."""
    _starters.submit(ray.init).result()


def session() -> object:
    """Returns an object that identifies the Ray session of this process; `None` if there is none.

    It is looked up in Python only: Ray ends a process that calls functions of its core while the core is shut down.
    """
    if not ray.is_initialized():
        return None
    return _worker.global_worker.node or ray.util.client.ray.get_context().client_worker


def wait_until_gone(seconds: float = 10.0) -> None:
    """Waits until Ray has shut down: dropping an `ObjectRef` meanwhile calls its core, too."""
    for _ in Deadline(seconds).attempts_blocking(itertools.repeat(0.01)):
        if ray.is_initialized() or not hasattr(_worker.global_worker, "core_worker"):
            break


def checked_resources(resources: Mapping[str, float] | None) -> dict[str, float]:
    """Returns the resources that a worker needs; one CPU by default.

    Raises:
      InvalidValueError: If these are not amounts of resources.
    """
    if resources is None:
        return {"CPU": 1}
    if not isinstance(cast(object, resources), Mapping):
        raise InvalidValueError(
            f"Expected resources_per_worker as a dict, found {describe(resources)}; give {{'GPU': 0.5}}, for example"
        )
    known = {name.lower(): name for name in _OPTIONS}
    for name, amount in resources.items():
        if not isinstance(cast(object, name), str):
            raise InvalidValueError(
                f"Expected names of resources in resources_per_worker as str, found {describe(name)}; give "
                "{'GPU': 0.5}, for example"
            )
        meant = known.get(name.lower())
        if meant not in (None, name):
            raise InvalidValueError(f"Expected {meant!r} in resources_per_worker, found {name!r}; Ray calls it {meant}")
        check_number(f"resources_per_worker[{name!r}]", amount)
    return dict(resources)


def bundles_of(placement: object) -> "list[dict[str, float]] | None":
    """Returns the resources that a placement group reserves; `None` for any other placement."""
    return cast(Any, placement).bundle_specs if isinstance(placement, PlacementGroup) else None


def is_removed(placement: object) -> bool:
    """Returns whether a placement is a group that has been removed."""
    if not isinstance(placement, PlacementGroup):
        return False
    return ray.util.placement_group_table(placement).get("state", "REMOVED") == "REMOVED"  # of another Ray: no state


def actor_options(resources: Mapping[str, float], placement: object, runtime_env: object) -> dict[str, object]:
    """Returns the options of an actor with the resources that a worker needs.

    Args:
      resources: The amount of each resource.
      placement: "SPREAD", "PACK", a placement group, or another of Ray's scheduling strategies.
      runtime_env: Ray's description of the environment of the actor's process; `None` for the driver's environment.
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
            f"Expected placement as 'SPREAD', 'PACK' or one of Ray's own, found {describe(placement)}; give 'SPREAD'"
        )
    if not isinstance(runtime_env, Mapping | None):
        raise InvalidValueError(
            f"Expected runtime_env as a dict, found {describe(runtime_env)}; give {{'working_dir': '.'}}, for example"
        )
    try:
        RuntimeEnv(**cast("dict[str, Any]", runtime_env or {}))
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"Expected runtime_env as Ray takes it, found one that it rejects: {str(error).rstrip('.')}; fix it"
        ) from error
    # Ray packs by default.
    options["scheduling_strategy"] = "DEFAULT" if placement == "PACK" else placement
    if runtime_env is not None:
        options["runtime_env"] = runtime_env
    # Ray restarts actors that have ended. fedstack reruns their work, where it knows that this is allowed.
    return {**options, "max_restarts": -1, "max_task_retries": 0}
