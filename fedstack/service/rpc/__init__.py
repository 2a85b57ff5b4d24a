"""Remote procedure calls: a server registers computations under names, and clients call them.

The public names are imported on first access, because their modules need gRPC.
"""

from typing import TYPE_CHECKING

from fedstack.foundations.public_names import lazy_names

if TYPE_CHECKING:
    from fedstack.service.rpc.client import Client
    from fedstack.service.rpc.method_service import MethodService
    from fedstack.service.rpc.server import Server
    from fedstack.service.rpc.status_or_result import StatusOrResult
    from fedstack.transport.wire.status import Code

__all__ = ["Client", "Code", "MethodService", "Server", "StatusOrResult"]

_MODULES = {
    "Client": "service.rpc.client",
    "Code": "transport.wire.status",
    "MethodService": "service.rpc.method_service",
    "Server": "service.rpc.server",
    "StatusOrResult": "service.rpc.status_or_result",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
