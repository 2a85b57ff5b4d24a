"""Imports gRPC, for all of fedstack, and tells it what it asks the environment for: it looks once, when it is imported.

It is told to be quiet. Its library writes lines of its own to standard error, as of a handshake that failed, which
become errors here that say more. And it is told to let forks alone. Its support for them revives its threads in every
child, even one that only runs another program, over the memory and the sockets of its parent: of children that were
forked while calls were running 1 in 6 died, and connections of the parent broke. What users have set counts more, and
the environment is afterwards what it was.
"""

import contextlib
import os
import sys
from collections.abc import Generator

from fedstack.transport.peers.fork_guard import fork_guard

FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_TOLD = {"GRPC_VERBOSITY": "NONE", FORK_SUPPORT: "0"}


@contextlib.contextmanager
def _telling() -> Generator[None]:
    """Sets the variables that nobody has set inside of the block."""
    missing = {name: value for name, value in _TOLD.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


if "grpc" in sys.modules and FORK_SUPPORT not in os.environ:
    fork_guard.expect_fork_support(FORK_SUPPORT)

with _telling():
    import grpc as grpc
    import grpc.aio as _  # noqa: F401
