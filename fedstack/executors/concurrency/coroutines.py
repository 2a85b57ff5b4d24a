"""Runs coroutines at most once (`LazyTask`), concurrently (`gather`), and without an event loop (`run_at_once`)."""

import asyncio
import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar, cast

from fedstack.errors import FedstackError
from fedstack.foundations.traceback_filter import without_frames, without_own_frames

_T = TypeVar("_T")
_O = TypeVar("_O")
_inline = threading.local()


class RunInline:
    """A context manager that enables or disables leaf work on the current thread; see `runs_inline`."""

    # A class, because a generator-based context manager would take four times as long, and each call enters two blocks.
    __slots__ = ("_before", "_enabled")

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._before = getattr(_inline, "enabled", False)
        _inline.enabled = self._enabled

    def __exit__(self, *error: object) -> None:
        _inline.enabled = self._before


def runs_inline() -> bool:
    """Returns whether leaf work runs on the current thread."""
    return getattr(_inline, "enabled", False)


def owned_by(owner: _O) -> Callable[[], _O]:
    """Returns a function that returns a `LazyTask`'s owner without keeping the owner alive. Only owners start tasks."""
    return cast("Callable[[], _O]", weakref.ref(owner))


class LazyTask(Generic[_T]):
    """Runs a coroutine when its value is first needed, and keeps the value or error.

    When the last waiter is cancelled, the coroutine is cancelled as well, and the next call of `get` starts a new one.

    Args:
      start: Returns a new coroutine.
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
        """Whether the coroutine has completed without an error."""
        return self.done and self._error is None

    async def get(self) -> _T:
        """Returns the value, and runs the coroutine if the value is not known yet.

        Raises:
          Exception: The error of the coroutine.
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
        except FedstackError as error:
            self._error = without_own_frames(error)
        except Exception as error:
            self._error = error  # an unexpected error keeps its frames for the log
        self._start = None  # also drops the references to the inputs of the coroutine

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
    """Returns a copy of a kept error, because raising the original would add frames that refer to its owner."""
    if not isinstance(error, FedstackError):
        return error  # an error class of the user may not be copyable
    again = type(error).__new__(type(error), *error.args)
    again.args = error.args
    vars(again).update(vars(error))
    again.__cause__, again.__context__ = error.__cause__, error.__context__
    again.__suppress_context__ = error.__suppress_context__
    return again


# Several workers may fail at once, each because of a different client. All failures are known after this time.
TOGETHER_SECONDS = 0.1


async def gather(coroutines: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Runs coroutines concurrently and returns their results. If one fails, cancels and awaits the rest."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException as error:
        await end_all(tasks, error)
        raise


async def all_in_order(parts: Sequence[Coroutine[Any, Any, _T]], losses: tuple[type[Exception], ...] = ()) -> list[_T]:
    """Runs parts of some work concurrently, and raises the error that a sequential run would raise.

    If several parts fail, the error of the first part in order is raised. When a part fails, later parts are cancelled,
    but earlier parts are awaited because they may still fail. A loss is raised almost immediately. The cost per part
    does not grow with the number of parts.

    Args:
      parts: The parts of the work.
      losses: The classes of errors that are not caused by the work itself. A cancelled part also counts as a loss.
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
                        await asyncio.wait(still, timeout=TOGETHER_SECONDS)
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
    """Cancels tasks and waits until they have ended.

    Args:
      tasks: The tasks.
      error: The error that the caller raises. The frames of all other errors are dropped.
    """
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and outcome is not error:
            without_frames(outcome)


class _LoopRequest:
    """A request that a coroutine yields in order to continue on an event loop."""

    def __await__(self) -> Generator[object, None, None]:
        yield self


async def need_event_loop() -> None:
    """Moves the calling coroutine to a thread with a running event loop, unless it is already on such a thread."""
    if runs_inline():
        await _LoopRequest()


def run_at_once(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine and its leaf work to completion on the current thread, and ignores requests for a loop."""
    before, _inline.enabled = runs_inline(), True  # `RunInline` would make a small call two percent slower
    try:
        while True:
            check_request(coroutine, coroutine.send(None))
    except StopIteration as end:
        return end.value
    finally:
        _inline.enabled = before


def check_request(coroutine: Coroutine[Any, Any, Any], awaited: object) -> None:
    """Checks that a coroutine outside a loop awaits only a request for a loop; otherwise closes the coroutine."""
    if not isinstance(awaited, _LoopRequest):
        coroutine.close()
        raise RuntimeError(
            f"Expected a request for an event loop, found {awaited!r} awaited without a loop; await need_event_loop() "
            "first"
        )


async def wait(seconds: float) -> None:
    """Waits `seconds` seconds on an event loop or, in a debugging context without a loop, on the caller's thread."""
    await need_event_loop()
    if runs_inline():
        time.sleep(seconds)  # noqa: ASYNC251  # this thread has no event loop that could be blocked
    else:
        await asyncio.sleep(seconds)
