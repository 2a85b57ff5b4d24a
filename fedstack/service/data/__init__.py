"""Datasets of client data, and the servers that read, prepare and divide datasets on demand.

The names are imported on first use, because the servers require gRPC, but datasets do not.
"""

from typing import TYPE_CHECKING

from fedstack.foundations.public_names import lazy_names

if TYPE_CHECKING:
    from fedstack.service.data.consumer.descriptions import ShardingPolicy
    from fedstack.service.data.consumer.distribute import distribute, from_dataset_id, register_dataset
    from fedstack.service.data.datasets.dataset import Dataset
    from fedstack.service.data.dispatcher.dispatch_server import DispatcherConfig, DispatchServer
    from fedstack.service.data.worker.worker_server import WorkerConfig, WorkerServer
    from fedstack.service.host.limits import DataWorkerLimits, DispatcherLimits

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
    "DataWorkerLimits": "service.host.limits",
    "Dataset": "service.data.datasets.dataset",
    "DispatchServer": "service.data.dispatcher.dispatch_server",
    "DispatcherConfig": "service.data.dispatcher.dispatch_server",
    "DispatcherLimits": "service.host.limits",
    "ShardingPolicy": "service.data.consumer.descriptions",
    "WorkerConfig": "service.data.worker.worker_server",
    "WorkerServer": "service.data.worker.worker_server",
    "distribute": "service.data.consumer.distribute",
    "from_dataset_id": "service.data.consumer.distribute",
    "register_dataset": "service.data.consumer.distribute",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
