"""The coordinator: calls run at whichever worker is free, and their values stay there until they are fetched."""

from fedstack.errors import ClosureCancelledError
from fedstack.service.coordinator.async_coordinator import AsyncClusterCoordinator
from fedstack.service.coordinator.calls.closure_bodies import current_worker_index
from fedstack.service.coordinator.calls.per_worker import PerWorkerValues
from fedstack.service.coordinator.coordinator import ClusterCoordinator
from fedstack.service.coordinator.remote_value import RemoteValue
from fedstack.service.coordinator.variables.variable import AsyncVariable, Variable
from fedstack.service.coordinator.waiting import as_completed, wait

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
