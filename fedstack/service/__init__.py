"""Where computations run: servers, the executor service, pools of workers.

The names are imported when they are first asked for: a server needs gRPC, and the command line should start quickly.
"""

from typing import TYPE_CHECKING

from fedstack.foundations.public_names import lazy_names

if TYPE_CHECKING:
    from fedstack.service import coordinator as coordinator
    from fedstack.service import data as data
    from fedstack.service import rpc as rpc
    from fedstack.service.cluster.server import Server, ServerConfig
    from fedstack.service.cluster.task import wait_for_addresses
    from fedstack.service.executor.executor_service import ExecutorService
    from fedstack.service.host.host import GrpcServer
    from fedstack.service.host.limits import ServerLimits, ServiceLimits
    from fedstack.service.host.server_thread import ServerThread
    from fedstack.service.pool.worker_pool import local_worker_pool
    from fedstack.transport.grpc.credentials import ServerCredentials
    from fedstack.transport.wire.cluster_spec import ClusterDef, ClusterSpec, ServerDef

__all__ = [
    "ClusterDef",
    "ClusterSpec",
    "ExecutorService",
    "GrpcServer",
    "Server",
    "ServerConfig",
    "ServerCredentials",
    "ServerDef",
    "ServerLimits",
    "ServerThread",
    "ServiceLimits",
    "local_worker_pool",
    "wait_for_addresses",
]

_MODULES = {
    "ClusterDef": "transport.wire.cluster_spec",
    "ClusterSpec": "transport.wire.cluster_spec",
    "ExecutorService": "service.executor.executor_service",
    "GrpcServer": "service.host.host",
    "Server": "service.cluster.server",
    "ServerConfig": "service.cluster.server",
    "ServerCredentials": "transport.grpc.credentials",
    "ServerDef": "transport.wire.cluster_spec",
    "ServerLimits": "service.host.limits",
    "ServerThread": "service.host.server_thread",
    "ServiceLimits": "service.host.limits",
    "local_worker_pool": "service.pool.worker_pool",
    "wait_for_addresses": "service.cluster.task",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, ["coordinator", "data", "rpc"])
