"""Lets programs own a server: it starts, stops and is waited for by one object, and ends with it."""

import asyncio
import contextlib
import logging
import os
import weakref
from typing import TypeVar

from fedstack.errors import ClosedError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.executors.concurrency.off_loop import off_loop
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_number
from fedstack.service.server.server_thread import Hosted, ServerThread
from fedstack.transport.peers.io_loop import io_loop, start_apart

_S = TypeVar("_S", bound="OwnedServer")
_logger = logging.getLogger(__name__)


class OwnedServer(ClosesOnExit):
    """The base of servers for programs.

    It stops at the end of a block, with `stop()`, and when nothing refers to it any more.

    Args:
      server: What serves, not started yet.
      start: Whether to start it at once, else `start()` or a block does.
    """

    _started = False

    def __init__(self, server: Hosted, start: bool = True) -> None:
        self._server = server
        self._thread = ServerThread(server)
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _let_go, server)
        self._finalizer.atexit = False
        if start:
            try:
                self.start()
            except BaseException:
                self.stop(0)
                raise

    @property
    def target(self) -> str:
        """The address to dial.

        Raises:
          ClosedError: If it has not been started.
        """
        return self._server.target

    def start(self) -> None:
        """Returns when the server can be dialled. Idempotent.

        Raises:
          AddressError: If it cannot listen at its address; the message says why.
          ClosedError: If it has been stopped.
        """
        if self._closed:
            raise self._closed_error()
        if self._started:
            return
        self._thread.start()
        try:
            self._has_started()
        except BaseException:
            self.stop(0)
            raise
        self._started = True

    def _has_started(self) -> None:
        """Does more once the server can be dialled."""

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the server has stopped; another thread, or a block that ends, stops it.

        Args:
          timeout: How long to wait, in seconds; by default as long as it takes.

        Returns:
          Whether it has stopped.

        Raises:
          ClosedError: If it has not been started.
        """
        self._check_joinable(timeout)
        return self._thread.join(timeout)

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits as `join` does, in an event loop."""
        self._check_joinable(timeout)
        return await io_loop.run(_has_stopped(self._server, timeout))

    def stop(self, grace: float | None = None) -> None:
        """Stops the server, and returns when its port is free. Idempotent.

        In a forked child it leaves the server alone: it is the parent's.

        Args:
          grace: How long running calls have, in seconds, before they are cancelled; half a minute by default. Clients
            that only are connected hold nothing up.
        """
        if grace is not None:
            check_number("grace", grace)
        self._closed = True
        self._finalizer.detach()
        if os.getpid() == self._owner:
            self._thread.stop(grace)

    def close(self) -> None:
        """Stops the server; see `stop`."""
        self.stop()

    def _entered(self) -> None:
        self.start()

    async def __aenter__(self: _S) -> _S:
        await off_loop(self.start)
        return await super().__aenter__()

    def _check_joinable(self, timeout: float | None) -> None:
        if timeout is not None:
            check_number("timeout", timeout)
        if not (self._started or self._closed):
            raise ClosedError("Expected a server that has been started, found one that has not; call start() first")

    @property
    def _state(self) -> str:
        return "stopped" if self._closed else f"at {self.target}" if self._started else "not started"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state}>"


async def _has_stopped(server: Hosted, timeout: float | None) -> bool:
    with contextlib.suppress(asyncio.TimeoutError):
        await Deadline(timeout).wait(server.wait())
    return server.has_stopped


def _let_go(server: Hosted) -> None:
    """Stops a server that nothing refers to any more: a finalizer, which only says so to the loop."""
    io_loop.call_soon(lambda: start_apart(_stop_forgotten(server)))


async def _stop_forgotten(server: Hosted) -> None:
    with contextlib.suppress(ClosedError):  # it has not been started
        target = server.target
        _logger.warning("The server at %s stops, as nothing refers to it any more; keep it in a variable", target)
    await server.stop(0)
