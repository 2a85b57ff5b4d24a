"""Waits for a single peer, on behalf of callers that have only one, such as callers of methods and users of sessions.

A `Membership` always knows which of many peers are ready. A caller of a single peer checks the peer only when
necessary: `reach` waits for the peer before the first call and after a loss, and `answered` repeats a call after a
loss.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypeVar

from fedstack.computations.types.language import RetryableError
from fedstack.errors import DeadlineExceededError, FedstackError, WorkerUnavailableError
from fedstack.foundations.deadline import Deadline
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.connection_errors import listed

_T = TypeVar("_T")
Ask: TypeAlias = Callable[[], Awaitable[object]]
_logger = logging.getLogger(__name__)
QUIET_SECONDS = 2.5
"""The number of seconds that a caller waits before the wait is logged.

By then, the reason why the peer is away is normally known.
"""
# The time limit of one attempt to reach a peer, the time limit of one check whether a lost peer is back, and the pause
# after each attempt or check.
_READY_SECONDS = 0.25
_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 0.05
# The interval between full attempts to reach a peer that is not back, which detect the cause.
_ASK_SECONDS = 1.0


def say_waiting(what: str, seconds: float | None, causes: Mapping[str, str] | Exception | str) -> None:
    """Logs that callers are waiting.

    Args:
      what: A noun phrase for the peer that they wait for, such as `the worker at localhost:8000`.
      seconds: The time limit of the wait in seconds; `None` for no limit.
      causes: The reason why the peer is not ready, as an error or a text; or the reasons by address.
    """
    limit = "" if Deadline(seconds).left is None else f" for at most {seconds:.3g} s"
    found = listed(causes) if isinstance(causes, Mapping) else f" {causes}"
    _logger.warning("Waiting for %s%s:%s", what, limit, found)


class WaitNotice:
    """Logs that a caller is waiting: once, and only if the wait lasts longer than `QUIET_SECONDS`.

    Args:
      what: A noun phrase for the peer that the caller waits for.
      seconds: The time limit of the wait in seconds; `None` for no limit.
      clock: Returns the time in seconds.
    """

    def __init__(self, what: str, seconds: float | None, clock: Callable[[], float]) -> None:
        self._what = what
        self._seconds = seconds
        self._quiet = Deadline(QUIET_SECONDS, clock)
        self._has_said = False

    def waits(self, cause: Exception | str) -> None:
        """Records that the caller is still waiting, and the reason."""
        if self._quiet.is_over and not self._has_said:
            self._has_said = True
            say_waiting(self._what, self._seconds, cause)


async def reach(stub: ServiceStub, seconds: float | None = None, ask: Ask | None = None) -> None:
    """Returns once a peer can be reached. Runs on the transport's loop.

    The connection to a peer dials less often the longer the peer was away. A lost peer is therefore also dialed
    independently of its connection, several times a second. Problems that waiting does not solve, such as a token that
    the peer rejects, are detected at the same time.

    Args:
      stub: The stub that calls the peer.
      seconds: How long to wait for the peer, in seconds; `None` for no limit.
      ask: A call that the peer must also answer, because a stalled process still accepts connections.

    Raises:
      WorkerUnavailableError: If the peer cannot be reached within the time limit, or has ended permanently.
      FedstackError: If waiting does not help.
    """
    await _reach(stub, Deadline(seconds, stub.io.time), ask, WaitNotice(stub.who, seconds, stub.io.time).waits)


async def back(stub: ServiceStub, ask: Ask) -> None:
    """Returns once a lost peer can be reached again and answers. Runs on the transport's loop.

    Args:
      stub: The stub that calls the peer.
      ask: The call that the peer must answer.

    Raises:
      FedstackError: If waiting does not help.
    """
    stub.is_reached = False
    await asyncio.sleep(_PAUSE_SECONDS)
    await _reach(stub, Deadline(), ask, lambda cause: None)


async def _reach(stub: ServiceStub, deadline: Deadline, ask: Ask | None, waits: Callable[[Exception], None]) -> None:
    next_question = Deadline(_ASK_SECONDS, stub.io.time)
    connection = stub.connection
    while True:
        is_lost = stub.is_reached is False and connection.can_look and not await connection.look(_LOOK_SECONDS)
        if not is_lost or stub.is_gone or deadline.is_over or next_question.is_over:
            try:
                await connection.wait_ready(min(_READY_SECONDS, deadline.left or _READY_SECONDS))
                if ask is not None:
                    await ask()
                stub.is_reached = True
                return
            except FedstackError as error:
                stub.is_reached = False
                if not isinstance(error, RetryableError) or stub.is_gone or deadline.is_over:
                    raise
                waits(error)
            next_question = Deadline(_ASK_SECONDS, stub.io.time)
        await asyncio.sleep(_PAUSE_SECONDS)


async def answered(
    stub: ServiceStub,
    ask: Callable[[], Awaitable[_T]],
    seconds: float | None = None,
    on_loss: Callable[[FedstackError], None] = lambda error: None,
) -> _T:
    """Calls a peer and returns its answer; repeats the call after a loss. Runs on the transport's loop.

    Args:
      stub: The stub that calls the peer.
      ask: Makes the call, as in `lambda: stub.take(request)`. The call must be safe to repeat.
      seconds: How long the peer may be away, in seconds; `None` for no limit.
      on_loss: Called with the error when a call fails because the peer is unreachable or does not answer.

    Raises:
      WorkerUnavailableError: If the peer cannot be reached within the time limit.
      DeadlineExceededError: If the peer does not answer within the time limit.
      FedstackError: If waiting does not help.
    """
    deadline = Deadline(seconds, stub.io.time)
    while True:
        try:
            return await ask()
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            if stub.is_gone or deadline.is_over:
                raise
            stub.is_reached = False
            on_loss(error)
        await asyncio.sleep(_PAUSE_SECONDS)
        await reach(stub, deadline.left)
