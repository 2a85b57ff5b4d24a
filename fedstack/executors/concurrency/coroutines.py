"""Runs coroutines: at most once (`LazyTask`), side by side (`gather`), and for synchronous callers (`SyncDriver`).

A synchronous caller waits anyway. As long as a computation needs no event loop (a local stack, one thing at a time), it
is driven on the caller's thread: no hand-over between threads, and it does not matter whether a loop is running there
(a notebook). When several things should run side by side, the coroutine asks for a loop and continues, from where it
stands, on a daemon thread that has one.
"""

import asyncio
import contextlib
import contextvars
import functools
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar, cast

from fedstack.errors import FedstackError
from fedstack.executors.concurrency.thread_pool import waiting
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.traceback_filter import without_frames, without_own_frames
from fedstack.transport.peers.daemon_threads import start_loop

_T = TypeVar("_T")
_O = TypeVar("_O")
_inline = threading.local()


class RunInline:
    """Lets leaf work run on this thread for the duration of a block, or not; see `runs_inline`."""

    __slots__ = ("_before", "_enabled")  # a generator would take four times as long, and each call enters two

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
    """Returns a function that returns the owner of a `LazyTask` without keeping it alive: only owners start tasks."""
    return cast("Callable[[], _O]", weakref.ref(owner))


class LazyTask(Generic[_T]):
    """A coroutine that starts when its value is first needed, and whose outcome, value or error, is kept.

    When the last waiter is cancelled, so is the coroutine, which then counts as never started.
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
        """Returns the value, running the coroutine on the first call.

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
            self._error = error  # an unforeseen error keeps its frames for the log
        self._start = None  # also drops what the coroutine needed

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
    """Returns a copy of a kept error to raise: raising adds frames, which refer to the object that keeps the error."""
    if not isinstance(error, FedstackError):
        return error  # a user's own class may not be copyable
    again = type(error).__new__(type(error), *error.args)
    again.args = error.args
    vars(again).update(vars(error))
    again.__cause__, again.__context__ = error.__cause__, error.__context__
    again.__suppress_context__ = error.__suppress_context__
    return again


# Several workers may die at the same time, each because of another client: after this long all of them are known.
_TOGETHER_SECONDS = 0.1


async def gather(coroutines: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Awaits coroutines side by side; after the first error, cancels the others and waits for them."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException as error:
        await end_all(tasks, error)
        raise


async def all_in_order(parts: Sequence[Coroutine[Any, Any, _T]], losses: tuple[type[Exception], ...] = ()) -> list[_T]:
    """Awaits parts of some work side by side, and raises the error that running them one after the other would.

    So if several fail, the error of the first is raised. Parts after a failed one are cancelled; those before it may
    still fail, and are waited for. A loss is raised almost at once. The cost of a part does not grow with their number.

    Args:
      parts: The parts.
      losses: Errors that say nothing about the work; a cancelled part counts as lost.
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
      error: The error that the caller raises; all others are dropped.
    """
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and outcome is not error:
            without_frames(outcome)


class _LoopRequest:
    """Yielded by a coroutine that wants to continue on an event loop."""

    def __await__(self) -> Generator[object, None, None]:
        yield self


async def need_event_loop() -> None:
    """Continues on a thread with a running event loop; does nothing if the coroutine is on one already."""
    if runs_inline():
        await _LoopRequest()


def run_at_once(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine to its end on the current thread, with its leaf work; a request for a loop is ignored."""
    before, _inline.enabled = runs_inline(), True  # `RunInline` would cost a small call two percent
    try:
        while True:
            _check_request(coroutine, coroutine.send(None))
    except StopIteration as end:
        return end.value
    finally:
        _inline.enabled = before


def _check_request(coroutine: Coroutine[Any, Any, Any], awaited: object) -> None:
    """Checks that the coroutine, outside a loop, awaits only a request for one."""
    if not isinstance(awaited, _LoopRequest):
        coroutine.close()
        raise RuntimeError(f"Expected a request for an event loop, found {awaited!r} awaited without one")


async def wait(seconds: float) -> None:
    """Waits on an event loop or, where a debugging context allows none, on the caller's thread."""
    await need_event_loop()
    if runs_inline():
        time.sleep(seconds)  # noqa: ASYNC251  # there is no event loop here to block
    else:
        await asyncio.sleep(seconds)


class _Continued(Generic[_T]):
    """Awaits a coroutine that was driven part of the way elsewhere."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, _T]:
        step = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                awaited = step()
            except StopIteration as stop:
                return stop.value
            try:
                sent = yield awaited
                step = lambda sent=sent: self._coroutine.send(sent)  # noqa: E731
            except BaseException as error:
                step = lambda error=error: self._coroutine.throw(error)  # noqa: E731


async def _continue(coroutine: Coroutine[Any, Any, _T]) -> _T:
    return await _Continued(coroutine)


class SyncDriver:
    """Runs coroutines for synchronous callers on any number of threads.

    Args:
      allow_loop: Whether to use a loop thread; without it (debugging), everything stays on the caller's thread.
    """

    def __init__(self, *, allow_loop: bool = True) -> None:
        self.allow_loop = allow_loop
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Starts without a loop: a forked child does not have its parent's thread."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = 0

    def run(self, coroutine: Coroutine[Any, Any, _T], *, inline: bool) -> _T:
        """Runs a coroutine to its end and returns its result.

        Args:
          coroutine: What to run.
          inline: Whether to start on the caller's thread; only for coroutines that ask for a loop when they need one.
        """
        if not inline:
            return self._finish(coroutine)
        # The coroutine sets variables in a copy: once it has moved to a loop, it could not reset them here.
        context = contextvars.copy_context()
        if not self.allow_loop:
            return context.run(run_at_once, coroutine)
        try:
            with RunInline():
                _check_request(coroutine, context.run(coroutine.send, None))
        except StopIteration as stop:
            return stop.value
        return context.run(self._finish, _continue(coroutine))

    def _finish(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        try:
            loop = self._enter_loop()
        except BaseException:
            coroutine.close()  # Python warns of coroutines that never start
            raise
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
            try:
                with RunInline(False), waiting():
                    return future.result()
            except BaseException:
                # Ctrl-C while waiting: the work must not continue in the background.
                future.cancel()
                raise
            finally:
                del future  # its error refers to this frame
        finally:
            with self._lock:
                self._running -= 1
            self._end_loop()

    def _enter_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, which runs at least until the matching `_end_loop`."""
        with self._lock:
            if self._loop is None:
                # In an empty context: a loop keeps the context that it is made in, and ours refers to the driver.
                self._loop = contextvars.Context().run(lambda: start_loop(_serve, name="fedstack-loop"))
                # The thread holds no reference to the driver, so it also ends when the driver is garbage-collected.
                weakref.finalize(self, _stop, self._loop).atexit = False
            self._running += 1
            return self._loop

    def _end_loop(self) -> None:
        """Ends the loop thread if the driver is closed and nothing runs on the loop any more."""
        with self._lock:
            if self._running or not self._closed or self._loop is None:
                return
            loop, self._loop = self._loop, None
        _stop(loop)

    def close(self) -> None:
        """Ends the loop thread, if there is one, as soon as its work has ended. Idempotent."""
        with self._lock:
            self._closed = True
        self._end_loop()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    """Asks a loop on another thread to end, if it has not ended already."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a loop until it is stopped."""
    stopped = False
    while not stopped:
        # Ctrl-C and sys.exit() in a task leave the loop: the task's waiter gets them, and other tasks continue.
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()
            stopped = True
    loop.close()
