"""The coordinator, which runs calls on any free worker and leaves their values there until they are fetched."""

from fedstack.errors import ClosureCancelledError
from fedstack.service.coordinator.calls.python_calls import PerWorkerValues, current_worker_index
from fedstack.service.coordinator.coordinator import AsyncClusterCoordinator, ClusterCoordinator
from fedstack.service.coordinator.remote_value import RemoteValue, as_completed, wait
from fedstack.service.coordinator.variables import AsyncVariable, Variable

__all__ = [
    "AsyncClusterCoordinator",
    "AsyncVariable",
    "ClosureCancelledError",
    "ClusterCoordinator",
    "PerWorkerValues",
    "RemoteValue",
    "Variable",
    "as_completed",
    "current_worker_index",
    "wait",
]
