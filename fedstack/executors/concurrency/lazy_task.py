"""Runs something at most once, lazily, and shares its outcome among all who ask."""

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from fedstack.errors import FedstackError
from fedstack.executors.concurrency.leaf_threads import runs_inline
from fedstack.foundations.traceback_filter import without_own_frames

_T = TypeVar("_T")
_O = TypeVar("_O")


def owned_by(owner: _O) -> Callable[[], _O]:
    """Returns a function that returns the owner of a `LazyTask` without keeping it alive: only the owner starts it."""
    return cast("Callable[[], _O]", weakref.ref(owner))


class LazyTask(Generic[_T]):
    """A coroutine that starts when first asked for, and whose outcome, value or error, is kept.

    When the last of those who wait is cancelled, so is the coroutine; it then counts as never started.
    """

    __slots__ = ("_error", "_start", "_task", "_value", "_waiting")

    def __init__(self, start: Callable[[], Coroutine[Any, Any, _T]]) -> None:
        self._start: Callable[[], Coroutine[Any, Any, _T]] | None = start
        self._task: asyncio.Task[None] | None = None
        self._value: _T | None = None
        self._error: Exception | None = None
        self._waiting = 0

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._start is None

    @property
    def has_value(self) -> bool:
        """Whether the outcome is known, and is no error."""
        return self.done and self._error is None

    async def get(self) -> _T:
        """Returns the value, running the coroutine if nobody has yet.

        Raises:
          Exception: What the coroutine raised.
        """
        if not self.done:
            if runs_inline():
                await self._run()
            else:
                await self._wait()
        if self._error is not None:
            error, self._error = self._error, raised_again(self._error)
            try:
                raise error
            finally:
                del error
        return cast(_T, self._value)

    async def _run(self) -> None:
        start = self._start
        if start is None:
            return
        try:
            self._value = await start()
        except Exception as error:
            self._keep(error)
        self._start = None  # also lets go of what the coroutine needed

    def _keep(self, error: Exception) -> None:
        # What nobody has foreseen keeps its frames for the log. The others may never be asked for.
        self._error = without_own_frames(error) if isinstance(error, FedstackError) else error

    async def _wait(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        task = self._task
        self._waiting += 1
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._waiting == 1 and not task.done():
                self._task = None
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            raise
        finally:
            self._waiting -= 1


def raised_again(error: Exception) -> Exception:
    """Returns a copy of an error to raise: one that is raised gets frames, and these lead to whoever keeps it."""
    if not isinstance(error, FedstackError):
        return error  # a class of the user's own may not let itself be copied
    again = type(error).__new__(type(error), *error.args)
    again.args = error.args
    vars(again).update(vars(error))
    again.__cause__, again.__context__ = error.__cause__, error.__context__
    again.__suppress_context__ = error.__suppress_context__
    return again
