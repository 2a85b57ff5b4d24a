"""Imports gRPC for all of fedstack, and sets environment variables that gRPC reads only once, during its import.

`GRPC_VERBOSITY` silences gRPC's own log lines on standard error, for example about failed handshakes, because fedstack
reports such failures as clearer errors. `GRPC_ENABLE_FORK_SUPPORT` disables gRPC's fork support. That support restarts
gRPC's threads in every forked child, even in a child that only runs another program, and the threads then use memory
and sockets that belong to the parent: 1 in 6 children that were forked during calls died, and the parent's connections
broke. Values that the user has set take precedence. The environment is restored after the import.
"""

import contextlib
import os
import sys
from collections.abc import Generator

from fedstack.transport.peers.fork_guard import fork_guard

FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_VARIABLES = {"GRPC_VERBOSITY": "NONE", FORK_SUPPORT: "0"}


@contextlib.contextmanager
def _variables_set() -> Generator[None]:
    """Sets environment variables during the block, except variables that the user has set."""
    missing = {name: value for name, value in _VARIABLES.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


if "grpc" in sys.modules and FORK_SUPPORT not in os.environ:
    fork_guard.expect_fork_support(FORK_SUPPORT)

with _variables_set():
    import grpc as grpc
    import grpc.aio as _  # noqa: F401
