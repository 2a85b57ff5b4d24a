"""Runs coroutines for synchronous callers.

A synchronous caller waits anyway. As long as a computation needs no event loop, because it is local and sequential, it
is driven on the caller's thread. This avoids switching threads, and works even if an event loop is already running on
that thread, as in a notebook. When several coroutines should run concurrently, the computation requests an event loop
and continues from the same point on a daemon thread that runs one.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

from fedstack.executors.concurrency.coroutines import RunInline, check_request, run_at_once
from fedstack.executors.concurrency.thread_pool import waiting
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.transport.peers.daemon_threads import start_loop

_T = TypeVar("_T")
# How long an interrupted call waits until its work has been cancelled, also at workers.
_CANCEL_SECONDS = 1.0


class _Continued(Generic[_T]):
    """An awaitable for the remainder of a coroutine that was partly driven outside an event loop."""

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
      allow_loop: Whether to use a thread with an event loop. If false, all work stays on the caller's thread, which
        helps in debugging.
    """

    def __init__(self, *, allow_loop: bool = True) -> None:
        self.allow_loop = allow_loop
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Resets the driver in a forked child, which does not have its parent's loop thread."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = 0

    def run(self, coroutine: Coroutine[Any, Any, _T], *, inline: bool) -> _T:
        """Runs a coroutine to completion and returns its result.

        Args:
          coroutine: The coroutine to run.
          inline: Whether to start on the caller's thread. The coroutine must then call `need_event_loop` before it
            needs a loop.
        """
        if not inline:
            return self._finish(coroutine)
        # The coroutine sets context variables in a copy of the context, because it could not reset them in the original
        # after it has moved to a loop.
        context = contextvars.copy_context()
        if not self.allow_loop:
            return context.run(run_at_once, coroutine)
        try:
            with RunInline():
                check_request(coroutine, context.run(coroutine.send, None))
        except StopIteration as stop:
            return stop.value
        return context.run(self._finish, _continue(coroutine))

    def _finish(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        try:
            loop = self._enter_loop()
        except BaseException:
            coroutine.close()  # Python warns of coroutines that never start
            raise
        future: concurrent.futures.Future[_T] | None = None
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
            with RunInline(False), waiting():
                return future.result()
        finally:
            if future is not None and future.done():
                self._leave_loop()
            else:  # as after Ctrl-C
                self._cancel(coroutine, loop)
            del future  # breaks the reference cycle: its error refers to this frame

    def _cancel(self, coroutine: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> None:
        """Ends work that must not continue in the background, and waits for its end, though not for long."""
        ended = asyncio.run_coroutine_threadsafe(_end_task_of(coroutine), loop)
        ended.add_done_callback(lambda _: self._leave_loop())
        concurrent.futures.wait([ended], _CANCEL_SECONDS)

    def _enter_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, which runs at least until the matching `_leave_loop`."""
        with self._lock:
            if self._loop is None:
                # An event loop keeps alive the context in which it is created. It is created in an empty context,
                # because the current context refers to the driver.
                self._loop = contextvars.Context().run(lambda: start_loop(_serve, name="fedstack-loop"))
                # The thread holds no reference to the driver, so it also ends when the driver is garbage-collected.
                weakref.finalize(self, _stop, self._loop).atexit = False
            self._running += 1
            return self._loop

    def _leave_loop(self) -> None:
        with self._lock:
            self._running -= 1
        self._end_loop()

    def _end_loop(self) -> None:
        """Stops the loop thread if the driver is closed and the loop has no more work."""
        with self._lock:
            if self._running or not self._closed or self._loop is None:
                return
            loop, self._loop = self._loop, None
        _stop(loop)

    def close(self) -> None:
        """Stops the loop thread as soon as its work has ended. Idempotent."""
        with self._lock:
            self._closed = True
        self._end_loop()


async def _end_task_of(coroutine: Coroutine[Any, Any, object]) -> None:
    """Cancels the task that runs a coroutine on this loop, and waits until it has ended."""
    tasks = [task for task in asyncio.all_tasks() if task.get_coro() is coroutine]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    """Stops an event loop on another thread, unless it has already been closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is stopped, then closes it."""
    stopped = False
    while not stopped:
        # KeyboardInterrupt and SystemExit in a task also stop the loop. The waiter of the task receives the exception,
        # and the loop is restarted so that other tasks continue.
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()
            stopped = True
    loop.close()
