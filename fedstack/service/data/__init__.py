"""Datasets: client data that is read, prepared and divided as it is needed, and the servers that do so.

The names are imported when they are first asked for: servers need gRPC, and datasets by themselves do not.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstack.service.data.consumer.distribute import distribute, from_dataset_id, register_dataset
    from fedstack.service.data.consumer.sharding import ShardingPolicy
    from fedstack.service.data.datasets.dataset import Dataset
    from fedstack.service.data.dispatcher.dispatch_server import DispatcherConfig, DispatchServer
    from fedstack.service.data.worker.worker_server import WorkerConfig, WorkerServer
    from fedstack.service.limits.limits import DataWorkerLimits, DispatcherLimits

__all__ = [
    "DataWorkerLimits",
    "Dataset",
    "DispatchServer",
    "DispatcherConfig",
    "DispatcherLimits",
    "ShardingPolicy",
    "WorkerConfig",
    "WorkerServer",
    "distribute",
    "from_dataset_id",
    "register_dataset",
]

_MODULES = {
    "DataWorkerLimits": "limits.limits",
    "Dataset": "data.datasets.dataset",
    "DispatchServer": "data.dispatcher.dispatch_server",
    "DispatcherConfig": "data.dispatcher.dispatch_server",
    "DispatcherLimits": "limits.limits",
    "ShardingPolicy": "data.consumer.sharding",
    "WorkerConfig": "data.worker.worker_server",
    "WorkerServer": "data.worker.worker_server",
    "distribute": "data.consumer.distribute",
    "from_dataset_id": "data.consumer.distribute",
    "register_dataset": "data.consumer.distribute",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedstack.service.{_MODULES[name]}"), name)
