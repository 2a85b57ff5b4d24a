"""Imports gRPC for all of fedstack, with the environment variables that gRPC reads once, on import.

One makes it quiet: its library writes lines of its own to standard error, of a failed handshake for example, which
become clearer errors here. The other turns off its support for forks, which revives its threads in every child, even
one that only runs another program, over the memory and sockets of the parent: 1 in 6 children that were forked during
calls died, and connections of the parent broke. Variables that users have set take precedence, and the environment is
restored.
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
    """Sets the variables that users have not set, for the duration of the block."""
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
