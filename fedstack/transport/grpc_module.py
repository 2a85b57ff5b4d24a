"""Imports gRPC, for all of fedstack.

Its library writes lines of its own to standard error, as of a handshake that failed, which become errors here that say
more. So it is told to be quiet, unless the user has set `GRPC_VERBOSITY` or has imported it before.
"""

import os
import sys

if "grpc" not in sys.modules:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it looks once, when it is imported

import grpc as grpc
import grpc.aio as _  # noqa: F401
