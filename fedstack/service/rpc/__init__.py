"""Remote procedure calls: a server registers computations under names, and clients call them.

The names are imported when they are first asked for, since they need gRPC.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstack.service.rpc.client import Client
    from fedstack.service.rpc.method_service import MethodService
    from fedstack.service.rpc.server import Server
    from fedstack.service.rpc.status_or_result import StatusOrResult
    from fedstack.transport.wire.status import Code

__all__ = ["Client", "Code", "MethodService", "Server", "StatusOrResult"]

_MODULES = {
    "Client": "fedstack.service.rpc.client",
    "Code": "fedstack.transport.wire.status",
    "MethodService": "fedstack.service.rpc.method_service",
    "Server": "fedstack.service.rpc.server",
    "StatusOrResult": "fedstack.service.rpc.status_or_result",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
