"""Where computations run: servers, clusters, coordinators, the command line.

The names are imported when they are first asked for: a server needs gRPC, and the command line should start quickly.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstack.service.executor_service import ExecutorService
    from fedstack.service.grpc_server import GrpcServer
    from fedstack.service.limits import ServerLimits, ServiceLimits
    from fedstack.service.server_thread import ServerThread
    from fedstack.service.worker_pool import local_worker_pool

__all__ = ["ExecutorService", "GrpcServer", "ServerLimits", "ServerThread", "ServiceLimits", "local_worker_pool"]

_MODULES = {
    "ExecutorService": "executor_service",
    "GrpcServer": "grpc_server",
    "ServerLimits": "limits",
    "ServerThread": "server_thread",
    "ServiceLimits": "limits",
    "local_worker_pool": "worker_pool",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
