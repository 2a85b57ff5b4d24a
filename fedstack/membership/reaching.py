"""Waits for one peer: what those do who have a single one, as the caller of methods or a session has.

Of many peers a `Membership` knows all the time which are there. Of a single one its callers find out as they need it,
all in the same way: `reach` before the first call and after a loss, `answered` for calls that may be made again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from fedstack.computations.types.language import RetryableError
from fedstack.errors import DeadlineExceededError, FedstackError, WorkerUnavailableError
from fedstack.foundations.deadline import Deadline
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.connection_errors import listed

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
QUIET_SECONDS = 2.5
"""How long a caller waits without a word about it; longer than it takes to find out why a peer is away."""
# How long one attempt to reach a peer may take, a look whether it is back, and the pause after both.
_READY_SECONDS = 0.25
_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 0.05
# How often a peer that is not back is asked what is wrong.
_ASK_SECONDS = 1.0


def say_waiting(what: str, seconds: float | None, causes: Mapping[str, str] | Exception | str) -> None:
    """Writes the one line about callers that wait.

    Args:
      what: What for, as in `the worker at localhost:8000`.
      seconds: How long they wait at most; `None` for any time.
      causes: Why that is not there: an error or a text, or one for each address.
    """
    limit = "" if Deadline(seconds).left is None else f", for {seconds:g} s at most"
    found = listed(causes) if isinstance(causes, Mapping) else f" {causes}"
    _logger.warning("Waiting for %s%s:%s", what, limit, found)


class WaitNotice:
    """Says that a caller waits, once and only if it takes more than a moment.

    Args:
      what: What for.
      seconds: How long it waits at most; `None` for any time.
      clock: Returns the time in seconds.
    """

    def __init__(self, what: str, seconds: float | None, clock: Callable[[], float]) -> None:
        self._what = what
        self._seconds = seconds
        self._quiet = Deadline(QUIET_SECONDS, clock)
        self._has_said = False

    def waits(self, cause: Exception | str) -> None:
        """The caller still waits, for this reason."""
        if self._quiet.is_over and not self._has_said:
            self._has_said = True
            say_waiting(self._what, self._seconds, cause)


async def reach(stub: ServiceStub, seconds: float | None = None) -> None:
    """Returns once a peer can be reached; runs on the transport's loop.

    A peer that was lost is dialled apart from its connection, several times a second: the connection by itself dials
    more seldom the longer the peer was away, and knows only then that it is back. What does not become right by
    waiting, such as a token that the peer refuses, is found out meanwhile.

    Args:
      stub: Calls the peer.
      seconds: How long to wait for it; `None` for any time.

    Raises:
      WorkerUnavailableError: If it cannot be reached within that time, or has ended for good.
      FedstackError: If waiting does not help.
    """
    deadline = Deadline(seconds, stub.io.time)
    notice = WaitNotice(stub.who, seconds, stub.io.time)
    next_question = Deadline(_ASK_SECONDS, stub.io.time)
    connection = stub.connection
    while True:
        is_lost = stub.is_reached is False and connection.can_look and not await connection.look(_LOOK_SECONDS)
        if not is_lost or stub.is_gone or deadline.is_over or next_question.is_over:
            try:
                await connection.wait_ready(min(_READY_SECONDS, deadline.left or _READY_SECONDS))
                stub.is_reached = True
                return
            except FedstackError as error:
                stub.is_reached = False
                if not isinstance(error, RetryableError) or stub.is_gone or deadline.is_over:
                    raise
                notice.waits(error)
            next_question = Deadline(_ASK_SECONDS, stub.io.time)
        await asyncio.sleep(_PAUSE_SECONDS)


async def answered(
    stub: ServiceStub,
    ask: Callable[[], Awaitable[_T]],
    seconds: float | None = None,
    on_loss: Callable[[FedstackError], None] = lambda error: None,
) -> _T:
    """Returns what a peer answers, which is asked again when it is back if it was lost; runs on the transport's loop.

    Args:
      stub: Calls the peer.
      ask: Makes the call, as in `lambda: stub.take(request)`; one that may be made twice.
      seconds: How long the peer may be away; `None` for any time.
      on_loss: Called with the error when a call fails because the peer is not there.

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
