"""Detects that a worker in use is silent, long before the worker counts as lost."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from fedstack.foundations.deadline import Deadline
from fedstack.foundations.traceback_filter import consume_exception
from fedstack.transport.peers.io_loop import start_apart
from fedstack.transport.peers.service_stub import ServiceStub

_logger = logging.getLogger(__name__)
# How long a worker may be quiet before it is queried, and the time limit of the query.
_QUIET_SECONDS = 0.5
_ANSWER_SECONDS = 1.5
_LOOKS = 3


class SilenceWatch:
    """A watch that queries a worker in use whenever the worker has been quiet for a while.

    The watch does not decide whether the worker is lost. A silent worker may only be stalled, and declaring it lost too
    early would run its work twice.

    Args:
      stub: The stub that calls the worker.
      ask: Queries the worker.
      on_change: Called with `True` when the worker falls silent, and with `False` when it answers again or is no
        longer in use.
    """

    def __init__(
        self, stub: ServiceStub, ask: Callable[[], Coroutine[Any, Any, None]], on_change: Callable[[bool], None]
    ) -> None:
        self._stub = stub
        self._question = ask
        self._on_change = on_change
        self._users = 0
        self._heard = 0.0
        self._is_silent = False
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def while_in_use(self) -> Generator[None, None, None]:
        """Watches the worker during the block."""
        self._users += 1
        if self._task is None:
            self.heard()
            self._task = start_apart(self._watch())
        try:
            yield
        finally:
            self._users -= 1

    def heard(self) -> None:
        """Records that the worker has sent something."""
        self._heard = self._stub.io.time()

    def close(self) -> None:
        """Stops watching. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        try:
            async for _ in Deadline().attempts(iter(self._seconds_to_ask, None)):
                if not self._users:
                    break
                if self._seconds_to_ask() == 0:
                    await self._ask()
                    self.heard()
        finally:
            self._task = None
        if self._is_silent:  # the next user starts without a known silence
            self._is_silent = False
            self._on_change(False)

    def _seconds_to_ask(self) -> float:
        return max(0.0, self._heard + _QUIET_SECONDS - self._stub.io.time())

    async def _ask(self) -> None:
        question = start_apart(self._question())
        question.add_done_callback(consume_exception)
        try:
            for _ in range(_LOOKS):  # several waits, because an answer takes longer if this process itself was stalled
                await asyncio.wait([question], timeout=_ANSWER_SECONDS / _LOOKS)
        finally:
            question.cancel()
        is_silent = not question.done()
        if is_silent is self._is_silent:
            return
        self._is_silent = is_silent
        if is_silent:
            _logger.warning(
                "The worker at %s has not answered for %g s; it receives no further calls until it answers, and its "
                "running calls move to other workers once it counts as lost",
                self._stub.address,
                _QUIET_SECONDS + _ANSWER_SECONDS,
            )
        else:
            _logger.warning("The worker at %s answers again", self._stub.address)
        self._on_change(is_silent)
