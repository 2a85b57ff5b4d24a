"""Runs everything that touches gRPC on one event loop: a daemon thread of the process, started when first needed.

gRPC's objects belong to the loop in which they were made, but executors are used from any loop, from several, and from
none. What must not wait for a user's own code, such as renewing leases, goes on here whatever that code does.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fedstack.errors import ClosedError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.traceback_filter import drop_outcome
from fedstack.transport.peers.daemon_threads import start_loop
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.peers.loop_calls import arrival, calls_on
from fedstack.transport.peers.outcomes import Outcome

_T = TypeVar("_T")

THREAD_NAME = "fedstack-transport"
_CANCEL_SECONDS = 1.0
_TICK_SECONDS = 0.25


class Ticks:
    """Calls functions on a loop, at each of its ticks; all of it happens there.

    They share one timer: a thousand sessions with one each would keep the loop at work though none of them needs
    anything.
    """

    def __init__(self) -> None:
        self._calls: dict[Callable[[], object], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Callable[[], object]) -> None:
        """Calls a function from now on. It must be quick and not raise."""
        self._calls[call] = None
        if self._timer is None:
            self._wait()

    def discard(self, call: Callable[[], object]) -> None:
        """Calls a function no more."""
        self._calls.pop(call, None)

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TICK_SECONDS, self._tick, context=contextvars.Context())

    def _tick(self) -> None:
        self._timer = None
        for call in list(self._calls):
            call()
        if self._calls and self._timer is None:
            self._wait()


class IoLoop:
    """An event loop on a daemon thread. It is never stopped: it costs nothing while it has nothing to do.

    Args:
      loop: A loop that somebody else runs; by default one that is made, with its thread, when it is first needed.

    Attributes:
      ticks: Calls functions there several times a second.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.renew()
        self._loop = loop
        renew_after_fork(self)

    def renew(self) -> None:
        """Begins without a loop: in a forked child the thread of its parent's is not there."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ticks = Ticks()

    def time(self) -> float:
        """Returns the time in seconds, as the loop counts it. Safe in finalizers: it takes no lock."""
        return time.monotonic() if self._loop is None else self._loop.time()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop.

        Raises:
          ClosedError: If this process was forked from one that uses gRPC, or whoever runs the loop has closed it.
          ResourceLimitError: If its thread cannot be started.
        """
        fork_guard.check()
        with self._lock:
            if self._loop is None:
                self._loop = start_loop(lambda loop: loop.run_forever(), name=THREAD_NAME)
            elif self._loop.is_closed():
                raise ClosedError("The loop of this connection is closed: the simulation that it belongs to has ended")
            return self._loop

    def is_current(self) -> bool:
        """Tells whether the caller runs on the loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine on the loop, from any loop. Cancelling the caller cancels it, and waits for its end."""
        if self.is_current():
            return await coroutine
        submitted = self.submit(coroutine)
        try:
            await arrival(submitted)
            if type(submitted.exception()) is concurrent.futures.CancelledError:  # and no class of the work's own
                raise asyncio.CancelledError
            return submitted.result()
        except asyncio.CancelledError:
            submitted.add_done_callback(drop_outcome)
            if submitted.cancel():
                await arrival(submitted, _CANCEL_SECONDS)
            raise
        finally:
            del submitted  # it has the error, whose frames have this one

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> "Submitted[_T]":
        """Starts a coroutine on the loop, from any thread; returns its outcome as a future that can cancel it."""
        return Submitted(self._loop_for(coroutine), coroutine)

    def run_sync(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Runs a coroutine on the loop and waits for it, from a thread without a loop or with another one.

        Raises:
          RuntimeError: If called on the loop, which would wait for itself.
          TimeoutError: If it takes longer than `timeout` seconds; it is cancelled then.
        """
        if self.is_current():
            coroutine.close()
            raise RuntimeError(
                "Expected a call from outside of the transport's loop, found one on it; await it instead"
            )
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # it has the error, whose frames have this one

    def _loop_for(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.AbstractEventLoop:
        try:
            return self.loop
        except BaseException:
            coroutine.close()  # nobody else will, and Python would complain
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Calls something on the loop, if there is one; it must not raise. Safe in finalizers: it takes no lock."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, context=contextvars.Context())

    def finish(self, coroutine: Coroutine[Any, Any, object], timeout: float = 2.0) -> None:
        """Runs a coroutine that closes something: waits for it where that blocks no event loop. Never raises."""
        with contextlib.suppress(Exception):  # a dead peer cannot keep anything open
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                self.run_sync(coroutine, timeout)
            else:
                self.submit(coroutine)


class Submitted(Outcome[_T]):
    """The outcome of a coroutine on a loop. It is there when the coroutine has ended, also if that was cancelled.

    Made by `IoLoop.submit`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, _T]) -> None:
        super().__init__()
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        in_context = contextvars.copy_context().run
        calls_on(loop).add(lambda: in_context(loop.create_task, self._run(coroutine)))

    def cancel(self) -> bool:
        if self.done():
            return False
        calls_on(self._loop).add(self._cancel)
        return True

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        """Tells what comes of the coroutine; a callback of the task would do so a turn of the loop later."""
        try:
            self._task = asyncio.current_task()
            if self._is_cancelled:  # before this first step
                coroutine.close()
                raise asyncio.CancelledError
            result = await coroutine
        except asyncio.CancelledError:
            self.tell(None, concurrent.futures.CancelledError())
        except BaseException as error:
            self.tell(None, error)
        else:
            self.tell(result, None)
        finally:
            self._task = None
            del self  # an error refers to this frame


def start_apart(coroutine: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
    """Starts a task on the running loop that may outlive who starts it.

    It gets none of the caller's context variables: they lead to the execution context, which a task that goes on until
    that is dropped would keep alive.
    """
    return contextvars.Context().run(asyncio.ensure_future, coroutine)


io_loop = IoLoop()
