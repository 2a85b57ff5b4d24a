"""Runs a server from code that has no event loop: scripts, notebooks, tests."""

from concurrent import futures
from types import TracebackType
from typing import Protocol

from fedstack.transport.peers.io_loop import io_loop


class Hosted(Protocol):
    """What serves on the transport's loop, such as a `GrpcServer`."""

    @property
    def target(self) -> str:
        """The address to dial.

        Raises:
          ClosedError: If it has not been started.
        """
        ...

    @property
    def has_stopped(self) -> bool:
        """Whether it has been told to stop, and has."""
        ...

    async def start(self) -> None:
        """Returns when it can be dialled. Idempotent."""
        ...

    async def wait(self) -> None:
        """Returns when it has stopped."""
        ...

    async def stop(self, grace: float | None = None) -> None:
        """Lets running calls come to their end, at most for so many seconds, and stops. Idempotent."""
        ...


class ServerThread:
    """A `GrpcServer`, or what else is hosted, on the thread that everything of gRPC runs on in this process.

        with ServerThread(GrpcServer([service], port=0)) as server:
            print(server.target)

    Args:
      server: The server, not started yet.
    """

    def __init__(self, server: Hosted) -> None:
        self.server = server

    @property
    def target(self) -> str:
        """The address to dial."""
        return self.server.target

    def start(self) -> None:
        """Returns when the server can be dialled.

        Raises:
          AddressError: If it cannot listen at its address.
        """
        io_loop.run_sync(self.server.start())

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the server has stopped, at most `timeout` seconds; tells whether it has."""
        try:
            io_loop.run_sync(self.server.wait(), timeout)
        except futures.TimeoutError:  # in Python 3.10 another class than the built-in
            return self.server.has_stopped
        return True

    def stop(self, grace: float | None = None) -> None:
        """Stops the server and returns when it has stopped; see `GrpcServer.stop`. Idempotent."""
        io_loop.run_sync(self.server.stop(grace))

    def __enter__(self) -> "ServerThread":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<ServerThread of {self.server!r}>"
