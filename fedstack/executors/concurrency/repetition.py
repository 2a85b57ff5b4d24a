"""Repeats work that failed with a retryable error, as often as the retry policy of the invocation allows."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fedstack.errors import NoWorkersError
from fedstack.executors.concurrency.coroutines import wait
from fedstack.foundations.traceback_filter import without_frames
from fedstack.membership.ledger import InvocationLosses

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


async def repeated(
    work: Callable[[], Awaitable[_T]],
    losses: InvocationLosses | None,
    what: str,
    kinds: type[Exception] | tuple[type[Exception], ...],
    *,
    gives_up_alone: bool = True,
) -> _T:
    """Returns the result of work that is repeated by itself, so that what the invocation has completed is kept.

    Args:
      work: Does the work.
      losses: The losses of the invocation; `None` to make a single attempt.
      what: What is repeated, for log messages, such as `Running server work`.
      kinds: The errors after which the work is repeated. If it must not be, the invocation is not repeated either.
      gives_up_alone: Whether the invocation ends if no worker is available. If not, all of it may be repeated.

    Raises:
      Exception: The error of the last attempt.
    """
    failures = 0
    while True:
        try:
            return await work()
        except kinds as error:
            is_alone = isinstance(error, NoWorkersError)
            if losses is None or losses.is_over or (is_alone and not gives_up_alone):
                raise
            failures += 1
            pause = None if is_alone else losses.pause(failures)
            if pause is None:
                losses.is_over = True
                raise
            _logger.warning("%s again in %.2f s after %s: %s", what, pause, type(error).__name__, error)
            without_frames(error)
        await wait(pause)
