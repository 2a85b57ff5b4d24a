"""Runs a server for code without an event loop: scripts, notebooks, tests."""

import asyncio
import contextlib
import logging
import os
import weakref
from typing import TypeVar

from fedstack.errors import ClosedError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_number
from fedstack.service.host.host import Host
from fedstack.transport.peers.io_loop import io_loop, start_apart

_S = TypeVar("_S", bound="ServerThread")
_logger = logging.getLogger(__name__)


class ServerThread(ClosesOnExit):
    """A `GrpcServer` on the thread that runs all of gRPC in this process.

        with ServerThread(GrpcServer([service], port=0)) as server:
            print(server.target)

    Args:
      server: The server, not started yet.
    """

    def __init__(self, server: Host) -> None:
        self.server = server
        self._owner = os.getpid()

    @property
    def target(self) -> str:
        """The address to dial, with the real port.

        Raises:
          ClosedError: If it has not been started.
        """
        return self.server.target

    def start(self) -> None:
        """Starts the server; returns when it can be dialled. Idempotent.

        Raises:
          AddressError: If it cannot listen at its address; the message says why.
          ClosedError: If it has been stopped.
        """
        if self._closed:
            raise self._closed_error()
        if self.server.has_started:
            return
        io_loop.run_sync(self.server.start())
        try:
            self._has_started()
        except BaseException:
            self.stop(0)
            raise

    def _has_started(self) -> None:
        """Called once the server can be dialled."""

    def join(self, timeout: float | None = None) -> bool:
        """Waits until another thread, or the end of a block, has stopped the server.

        Args:
          timeout: How long to wait, in seconds; by default as long as it takes.

        Returns:
          Whether it has stopped.

        Raises:
          ClosedError: If it has not been started.
        """
        return io_loop.run_sync(self._wait(timeout))

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits as `join` does, in an event loop."""
        return await io_loop.run(self._wait(timeout))

    async def _wait(self, timeout: float | None) -> bool:
        if timeout is not None:
            check_number("timeout", timeout)
        if not (self.server.has_started or self._closed):
            raise ClosedError("Expected a started server, found one that was not started; call start() first")
        with contextlib.suppress(asyncio.TimeoutError):
            await Deadline(timeout).wait(self.server.wait())
        return self.server.has_stopped

    def stop(self, grace: float | None = None) -> None:
        """Takes no new clients, waits for running calls, and returns when the port is free. Idempotent.

        In a forked child it leaves the server alone: it is the parent's.

        Args:
          grace: How long running calls have, in seconds, before they are cancelled; by default what the server was made
            with, half a minute unless that says otherwise. Clients that only are connected hold nothing up.
        """
        if grace is not None:
            check_number("grace", grace)
        self._closed = True
        if os.getpid() == self._owner:
            io_loop.run_sync(self.server.stop(grace))

    def close(self) -> None:
        """Stops the server; see `stop`."""
        self.stop()

    def _entered(self) -> None:
        self.start()

    async def __aenter__(self: _S) -> _S:
        await off_loop(self.start)
        return await super().__aenter__()

    @property
    def _state(self) -> str:
        return "stopped" if self._closed else f"at {self.target}" if self.server.has_started else "not started"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state}>"


class OwnedServer(ServerThread):
    """The base of servers for programs, which also stop when they are garbage-collected.

    Args:
      server: What serves, not started yet.
      start: Whether to start it at once, else `start()` or a block does.
    """

    def __init__(self, server: Host, start: bool = True) -> None:
        super().__init__(server)
        self._finalizer = weakref.finalize(self, _let_go, server)
        self._finalizer.atexit = False
        if start:
            try:
                self.start()
            except BaseException:
                self.stop(0)
                raise

    def stop(self, grace: float | None = None) -> None:
        super().stop(grace)
        self._finalizer.detach()


def _let_go(server: Host) -> None:
    """Stops a garbage-collected server: a finalizer, which only asks the loop to do it."""
    io_loop.call_soon(lambda: start_apart(_stop_forgotten(server)))


async def _stop_forgotten(server: Host) -> None:
    if server.has_started:
        target = server.target
        _logger.warning("The server at %s stops because nothing refers to it any more; keep it in a variable", target)
    await server.stop(0)
