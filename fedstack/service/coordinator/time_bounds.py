"""How long users are willing to wait for calls."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fedstack.errors import DeadlineExceededError, FedstackError
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_number

_T = TypeVar("_T")


def check_timeout(timeout: object) -> None:
    """Checks how long a user wants to wait.

    Raises:
      InvalidValueError: If it is neither `None` nor a number of at least 0.
    """
    if timeout is not None:
        check_number("timeout", timeout, endless=True)


async def within(work: Awaitable[_T], seconds: float | None, what: object) -> _T:
    """Awaits work that is given so long.

    Raises:
      DeadlineExceededError: If it takes longer; it is cancelled.
    """
    try:
        return await Deadline(seconds).wait(work)
    except asyncio.TimeoutError as error:
        if isinstance(error, FedstackError):
            raise
        raise DeadlineExceededError(f"Expected an outcome within {seconds:g} s, found none of {what!r}") from None
