"""Knows whether this process is a copy of one that uses gRPC: such a copy has gRPC's memory, and not its threads."""

import os

from fedstack.errors import ClosedError


class GrpcUse:
    """Remembers which process has begun to use gRPC, so that copies of it fail with an error and do not hang."""

    def __init__(self) -> None:
        self._process: int | None = None

    def begin(self) -> None:
        """Takes note that this process uses gRPC from now on.

        Raises:
          ClosedError: If it was forked from one that did already.
        """
        self.check()
        self._process = os.getpid()

    def check(self) -> None:
        """Raises if this process was forked from one that uses gRPC.

        Raises:
          ClosedError: If so.
        """
        if self._process is not None and self._process != os.getpid():
            raise ClosedError(
                f"Expected a process that may use gRPC, found one forked (os.fork) from process {self._process}, which "
                "uses it already, and it does not survive a fork; start processes with multiprocessing's 'spawn', or "
                "fork before anything is dialled or served and make contexts in the child"
            )

    def __repr__(self) -> str:
        return f"<GrpcUse by process {self._process}>"


grpc_use = GrpcUse()
