"""Awaits coroutines side by side, and leaves nothing behind of those that are not wanted any more."""

import asyncio
import functools
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from fedstack.foundations.traceback_filter import without_frames

_T = TypeVar("_T")
# Several workers may end at the same time, each of a client of its own: so much later all of them are known to have.
_TOGETHER_SECONDS = 0.1


async def gather(coroutines: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Awaits coroutines side by side; after the first error the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException as error:
        await end_all(tasks, error)
        raise


async def all_in_order(parts: Sequence[Coroutine[Any, Any, _T]], losses: tuple[type[Exception], ...] = ()) -> list[_T]:
    """Awaits parts of some work side by side, and raises what running them one after the other would.

    So of several that fail it is always the first whose error is seen. Parts behind one that has failed are cancelled;
    those before it may still fail, and are waited for. A loss is raised almost at once. A part costs the same however
    many there are.

    Args:
      parts: The parts.
      losses: Errors that say nothing about the work; a part that is cancelled counts as lost.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    wanted = len(tasks)
    running, failed = set(range(wanted)), list[int]()
    news = asyncio.Event()

    def end(position: int, task: "asyncio.Task[_T]") -> None:
        if position in running:
            running.remove(position)
            if task.cancelled() or task.exception() is not None:
                failed.append(position)
            if failed or not running:
                news.set()

    for position, task in enumerate(tasks):
        task.add_done_callback(functools.partial(end, position))
    try:
        while running:
            await news.wait()
            news.clear()
            if failed:
                first = min(failed)
                task = tasks[first]
                if task.cancelled() or isinstance(task.exception(), losses):
                    if still := [other for other in tasks if not other.done()]:
                        await asyncio.wait(still, timeout=_TOGETHER_SECONDS)
                    task.result()  # raises
                for later in range(first + 1, wanted):
                    running.discard(later)
                    tasks[later].cancel()
                wanted = first + 1
                failed.clear()
        return [task.result() for task in tasks[:wanted]]
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
