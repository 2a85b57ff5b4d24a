"""Servers for programs without an event loop, such as scripts, notebooks and tests."""

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
    """Runs a server on this process's I/O thread, where all gRPC work of fedstack runs.

        with ServerThread(GrpcServer([service], port=0)) as server:
            print(server.target)

    Args:
      server: The server, which must not have been started yet.
    """

    def __init__(self, server: Host) -> None:
        self.server = server
        self._owner = os.getpid()

    @property
    def target(self) -> str:
        """The address to dial, with the actual port.

        Raises:
          ClosedError: If the server has not been started.
        """
        return self.server.target

    def start(self) -> None:
        """Starts the server, and returns when clients can dial it. Idempotent.

        Raises:
          AddressError: If the server cannot listen on its address; the message explains why.
          ClosedError: If the server has been stopped.
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
        """Called once clients can dial the server."""

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the server has stopped, for example because another thread called `stop`.

        Args:
          timeout: The maximum time to wait in seconds; by default there is no limit.

        Returns:
          Whether the server has stopped.

        Raises:
          ClosedError: If the server has not been started.
        """
        return io_loop.run_sync(self._wait(timeout))

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits like `join`, without blocking the event loop."""
        return await io_loop.run(self._wait(timeout))

    async def _wait(self, timeout: float | None) -> bool:
        if timeout is not None:
            check_number("timeout", timeout)
        if not (self.server.has_started or self._closed):
            raise ClosedError("The server has not been started; call start() first")
        with contextlib.suppress(asyncio.TimeoutError):
            await Deadline(timeout).wait(self.server.wait())
        return self.server.has_stopped

    def stop(self, grace: float | None = None) -> None:
        """Rejects new clients, waits for running calls, and returns when the port is free. Idempotent.

        In a forked child this method does not stop the server, which belongs to the parent process.

        Args:
          grace: The time in seconds after which running calls are cancelled; by default the server's `grace_seconds`
            (30 unless configured otherwise). Connected clients without running calls do not delay the stop.
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
    """The base class of servers that programs create. Such a server also stops when it is garbage-collected.

    Args:
      server: The underlying server, which must not have been started yet.
      start: Whether to start the server immediately. Otherwise, call `start()` or use a `with` block.
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
    """Schedules the stop of a garbage-collected server on the I/O loop, without blocking the finalizer."""
    io_loop.call_soon(lambda: start_apart(_stop_forgotten(server)))


async def _stop_forgotten(server: Host) -> None:
    if server.has_started:
        target = server.target
        _logger.warning("Stopping the server at %s because it was garbage-collected; keep it in a variable", target)
    await server.stop(0)
