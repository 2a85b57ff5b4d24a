"""Waits for one peer: for callers that have a single peer, such as the caller of methods or of a session.

A `Membership` always knows which of many peers are ready. The callers of a single peer find out as they need it, all
in the same way: `reach` before the first call and after a loss, `answered` for calls that may be repeated.
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
"""How many seconds a caller waits before it is logged; longer than it takes to find out why a peer is away."""
# How long one attempt to reach a peer may take, how long a check whether it is back, and the pause after both.
_READY_SECONDS = 0.25
_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 0.05
# How often a peer that is not back is asked for the cause.
_ASK_SECONDS = 1.0


def say_waiting(what: str, seconds: float | None, causes: Mapping[str, str] | Exception | str) -> None:
    """Logs the line about waiting callers.

    Args:
      what: The thing that they wait for, as in `the worker at localhost:8000`.
      seconds: How long they wait at most; `None` for no limit.
      causes: Why it is not ready: an error or a text, or one for each address.
    """
    limit = "" if Deadline(seconds).left is None else f", for {seconds:g} s at most"
    found = listed(causes) if isinstance(causes, Mapping) else f" {causes}"
    _logger.warning("Waiting for %s%s:%s", what, limit, found)


class WaitNotice:
    """Logs that a caller waits, once and only if it takes more than a moment.

    Args:
      what: The thing that it waits for.
      seconds: How long it waits at most; `None` for no limit.
      clock: Returns the time in seconds.
    """

    def __init__(self, what: str, seconds: float | None, clock: Callable[[], float]) -> None:
        self._what = what
        self._seconds = seconds
        self._quiet = Deadline(QUIET_SECONDS, clock)
        self._has_said = False

    def waits(self, cause: Exception | str) -> None:
        """Records that the caller still waits, for this reason."""
        if self._quiet.is_over and not self._has_said:
            self._has_said = True
            say_waiting(self._what, self._seconds, cause)


async def reach(stub: ServiceStub, seconds: float | None = None, ask: Ask | None = None) -> None:
    """Returns once a peer can be reached; runs on the transport's loop.

    A lost peer is dialled separately from its connection, several times a second: the connection itself dials less
    often the longer the peer was away, and only notices then that it is back. Problems that waiting does not solve,
    such as a token that the peer refuses, are detected meanwhile.

    Args:
      stub: Calls the peer.
      seconds: How long to wait for it; `None` for no limit.
      ask: A call that the peer must also answer: a stalled process still accepts connections.

    Raises:
      WorkerUnavailableError: If it cannot be reached within that time, or has ended permanently.
      FedstackError: If waiting does not help.
    """
    await _reach(stub, Deadline(seconds, stub.io.time), ask, WaitNotice(stub.who, seconds, stub.io.time).waits)


async def back(stub: ServiceStub, ask: Ask) -> None:
    """Returns once a lost peer can be reached again and answers; runs on the transport's loop.

    Args:
      stub: Calls the peer.
      ask: The call that it must answer.

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
    """Returns the answer of a peer; if the peer is lost, asks again once it is back. Runs on the transport's loop.

    Args:
      stub: Calls the peer.
      ask: Makes the call, as in `lambda: stub.take(request)`; it must be safe to repeat.
      seconds: How long the peer may be away; `None` for no limit.
      on_loss: Called with the error when a call fails because the peer is unreachable.

    Raises:
      WorkerUnavailableError: If it cannot be reached within that time.
      DeadlineExceededError: If it does not answer.
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
