"""Detects whether this process was forked from one that uses gRPC: a copy has gRPC's memory, but not its threads."""

import logging
import os

from fedstack.errors import ClosedError

_logger = logging.getLogger(__name__)


class ForkGuard:
    """Remembers the process that began to use gRPC, so that forked copies fail with an error instead of hanging."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._warned = False

    def begin(self) -> None:
        """Records that this process uses gRPC from now on.

        Raises:
          ClosedError: If it was forked from a process that already used gRPC.
        """
        self.check()
        self._process = os.getpid()

    def check(self) -> None:
        """Checks that this process was not forked from one that uses gRPC.

        Raises:
          ClosedError: If it was.
        """
        if self._process is not None and self._process != os.getpid():
            raise ClosedError(
                f"This process was forked (os.fork) from process {self._process}, which already used gRPC, and gRPC "
                "does not survive a fork; start processes with multiprocessing's 'spawn', or fork before anything is "
                "dialled or served and make contexts in the child"
            )

    def expect_fork_support(self, variable: str) -> None:
        """Makes the first fork warn: gRPC was imported before its fork support could be switched off.

        Args:
          variable: The environment variable that switches it off.
        """
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=lambda: self._warn_once(variable))

    def _warn_once(self, variable: str) -> None:
        if self._process == os.getpid() and not self._warned:
            self._warned = True
            _logger.warning(
                "This process forks while it uses gRPC, and gRPC's fork support is on, since grpc was imported before "
                "fedstack could switch it off: children may crash and connections break; set "
                "%s=0 in the environment before grpc is imported",
                variable,
            )

    def __repr__(self) -> str:
        return f"<ForkGuard by process {self._process}>"


fork_guard = ForkGuard()
