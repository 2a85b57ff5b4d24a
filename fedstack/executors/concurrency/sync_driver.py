"""Drives a coroutine from synchronous code: on the caller's thread as far as possible, else on a loop of its own.

The caller waits anyway. As long as a computation needs no event loop (a local stack, one thing at a time) it is driven
right on the caller's thread: no hand-over between threads, and it does not matter whether a loop is running there
(a notebook). When several things should run side by side the coroutine asks for a loop, and goes on, from where it
stands, on a daemon thread that has one.
"""

import asyncio
import contextlib
import contextvars
import threading
import time
import weakref
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

from fedstack.executors.concurrency.leaf_threads import RunInline, runs_inline
from fedstack.executors.concurrency.thread_pool import waiting
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.transport.peers.daemon_threads import start_loop

_T = TypeVar("_T")


class _LoopRequest:
    """What a coroutine yields to be moved to an event loop."""

    def __await__(self) -> Generator[object, None, None]:
        yield self


async def need_event_loop() -> None:
    """Returns on a thread with a running event loop; a no-op where the coroutine already is on one."""
    if runs_inline():
        await _LoopRequest()


def run_at_once(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine to its end on the current thread, leaf work in it too. Where it asks for a loop it gets none."""
    try:
        with RunInline():
            while True:
                _check_request(coroutine, coroutine.send(None))
    except StopIteration as end:
        return end.value


def _check_request(coroutine: Coroutine[Any, Any, Any], awaited: object) -> None:
    """Checks that what a coroutine awaits outside of a loop is one."""
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
    """Awaits a coroutine that has been driven part of the way elsewhere."""

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
      allow_loop: Whether a loop thread may be used; without it (debugging) everything stays on the caller's thread.
    """

    def __init__(self, *, allow_loop: bool = True) -> None:
        self.allow_loop = allow_loop
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begins without a loop: in a forked child the thread of its parent's is not there."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = 0

    def run(self, coroutine: Coroutine[Any, Any, _T], *, inline: bool) -> _T:
        """Runs a coroutine to its end and returns its result.

        Args:
          coroutine: What to run.
          inline: Whether to begin on the caller's thread; only for coroutines that ask for a loop when they need one.
        """
        if not inline:
            return self._finish(coroutine)
        # Variables that the coroutine sets are its own: once it has moved it could not unset them here.
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
            coroutine.close()  # nobody else will, and Python would complain
            raise
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
            try:
                with RunInline(False), waiting():
                    return future.result()
            except BaseException:
                # Ctrl-C while waiting: the work must not go on behind the caller's back.
                future.cancel()
                raise
            finally:
                del future  # it has the error, whose frames have this one
        finally:
            with self._lock:
                self._running -= 1
            self._end_loop()

    def _enter_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, which stays as long as somebody is in it."""
        with self._lock:
            if self._loop is None:
                # In a context without variables: a loop keeps the one that it is made in, and ours leads to the driver.
                self._loop = contextvars.Context().run(lambda: start_loop(_serve, name="fedstack-loop"))
                # The thread does not know the driver: it ends when nobody refers to the driver any more, too.
                weakref.finalize(self, _stop, self._loop).atexit = False
            self._running += 1
            return self._loop

    def _end_loop(self) -> None:
        """Ends the loop thread once the driver is closed and nobody waits for the loop any more."""
        with self._lock:
            if self._running or not self._closed or self._loop is None:
                return
            loop, self._loop = self._loop, None
        _stop(loop)

    def close(self) -> None:
        """Ends the loop thread, if there is one, as soon as what runs on it has ended. Idempotent."""
        with self._lock:
            self._closed = True
        self._end_loop()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    """Asks a loop on another thread to end; one that has ended already is left alone."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a loop until it is stopped."""
    stopped = False
    while not stopped:
        # Ctrl-C and sys.exit() in a task leave the loop: the one who waits for the task gets them, others go on.
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()
            stopped = True
    loop.close()
