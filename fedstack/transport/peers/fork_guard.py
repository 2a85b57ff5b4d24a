"""Detects whether this process was forked from a process that uses gRPC.

gRPC does not work in such a process, which has a copy of gRPC's memory but none of gRPC's threads.
"""

import logging
import os

from fedstack.errors import ClosedError

_logger = logging.getLogger(__name__)


class ForkGuard:
    """Records the process that first uses gRPC, so that forked children raise an error instead of hanging."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._warned = False

    def begin(self) -> None:
        """Records that this process uses gRPC from now on.

        Raises:
          ClosedError: If this process was forked from a process that already used gRPC.
        """
        self.check()
        self._process = os.getpid()

    def check(self) -> None:
        """Checks that this process was not forked from a process that uses gRPC.

        Raises:
          ClosedError: If this process was forked from such a process.
        """
        if self._process is not None and self._process != os.getpid():
            raise ClosedError(
                f"This process was forked (os.fork) from process {self._process}, which already used gRPC, and gRPC "
                "does not work after a fork; start processes with multiprocessing's 'spawn' method, or fork before the "
                "first connection or server is created, and create contexts in the child"
            )

    def expect_fork_support(self, variable: str) -> None:
        """Arranges for a warning at the first fork. Called if gRPC was imported with its fork support enabled.

        Args:
          variable: The environment variable that disables gRPC's fork support.
        """
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=lambda: self._warn_once(variable))

    def _warn_once(self, variable: str) -> None:
        if self._process == os.getpid() and not self._warned:
            self._warned = True
            _logger.warning(
                "This process forks while it uses gRPC with its fork support enabled, because grpc was imported before "
                "fedstack could disable the support: child processes may crash, and connections may break; set "
                "%s=0 in the environment before grpc is imported",
                variable,
            )

    def __repr__(self) -> str:
        return f"<ForkGuard by process {self._process}>"


fork_guard = ForkGuard()
