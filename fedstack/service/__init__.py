"""Where computations run: servers, the executor service, pools of workers.

The names are imported when they are first asked for: a server needs gRPC, and the command line should start quickly.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstack.service.executor.executor_service import ExecutorService
    from fedstack.service.pool.worker_pool import local_worker_pool
    from fedstack.service.server.grpc_server import GrpcServer
    from fedstack.service.server.limits import ServerLimits, ServiceLimits
    from fedstack.service.server.server_thread import ServerThread

__all__ = ["ExecutorService", "GrpcServer", "ServerLimits", "ServerThread", "ServiceLimits", "local_worker_pool"]

_MODULES = {
    "ExecutorService": "executor.executor_service",
    "GrpcServer": "server.grpc_server",
    "ServerLimits": "server.limits",
    "ServerThread": "server.server_thread",
    "ServiceLimits": "server.limits",
    "local_worker_pool": "pool.worker_pool",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
