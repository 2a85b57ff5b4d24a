"""Awaits coroutines side by side, and leaves nothing behind of those that are not wanted any more."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from fedstack.foundations.traceback_filter import without_frames

_T = TypeVar("_T")


async def gather(coroutines: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Awaits coroutines side by side; after the first error the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException as error:
        await end_all(tasks, error)
        raise


async def end_all(tasks: Sequence["asyncio.Future[Any]"], error: BaseException) -> None:
    """Cancels tasks and waits for their end.

    Args:
      tasks: The tasks.
      error: What is raised. What else they end with, nobody gets to know.
    """
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and outcome is not error:
            without_frames(outcome)
