"""Runs all code that uses gRPC on a single event loop, on a daemon thread that is started on first use.

gRPC's objects are bound to the loop on which they were created, but executors may be used from one loop, from several
loops, or without a loop. Work that must not wait for user code, such as renewing leases, also runs on this loop.

Two classes pass work between threads: `LoopCalls` calls functions on a loop, and an `Outcome` passes a result to the
threads and loops that wait for it (`arrival`).
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from fedstack.errors import ClosedError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import timers_on
from fedstack.foundations.traceback_filter import drop_outcome
from fedstack.transport.peers.daemon_threads import start_loop
from fedstack.transport.peers.fork_guard import fork_guard

_T = TypeVar("_T")
THREAD_NAME = "fedstack-transport"
_CANCEL_SECONDS = 1.0
_TICK_SECONDS = 0.25


class Outcome(Generic[_T]):
    """The result or error of work on another thread. It is set once and may be read by any number of threads.

    A future of `concurrent.futures` is not used because its lock and condition slow down small calls measurably.
    """

    def __init__(self) -> None:
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._is_done = False
        self._callbacks: deque[Callable[[Any], object]] = deque()

    def done(self) -> bool:
        """Returns whether the outcome is set."""
        return self._is_done

    def cancelled(self) -> bool:
        """Returns whether the work was cancelled."""
        return isinstance(self._error, concurrent.futures.CancelledError)

    def cancel(self) -> bool:
        """Requests cancellation of the work, which may take some time. Returns whether the work was still running."""
        return not self._is_done

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the outcome and returns its error, or `None` if it has a result. Cancelled work also has an error.

        Raises:
          TimeoutError: If the outcome is not set within `timeout` seconds.
        """
        if not self._is_done:
            waits = threading.Lock()
            waits.acquire()
            self.add_done_callback(lambda _: waits.release())
            if not waits.acquire(timeout=-1 if timeout is None else timeout):
                raise concurrent.futures.TimeoutError
        return self._error

    def result(self, timeout: float | None = None) -> _T:
        """Waits for the outcome and returns its result.

        Raises:
          Exception: The error of the outcome, if there is one.
          TimeoutError: If the outcome is not set within `timeout` seconds.
        """
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # breaks a reference cycle: the error refers to this frame
        return cast(_T, self._result)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Calls `callback`, which must not raise, on the thread that sets the outcome, or at once if it is set."""
        self._callbacks.append(callback)
        if self._is_done:
            self._call_all()

    def set(self, result: _T | None, error: BaseException | None) -> None:
        """Sets the outcome. It must be called exactly once."""
        self._result, self._error, self._is_done = result, error, True
        self._call_all()

    def _call_all(self) -> None:
        with contextlib.suppress(IndexError):  # two threads may run this loop, and may compete for the last callback
            while self._callbacks:
                self._callbacks.popleft()(self)


class LoopCalls:
    """Calls functions on an event loop, in the order in which other threads add them.

    Each call of `call_soon_threadsafe` writes to a socket and releases Python's interpreter lock. With many calls in
    flight, two loops would spend more time waking each other than working. A `LoopCalls` therefore wakes the loop only
    once for all functions that are added before the loop runs. The functions must not raise.

    Args:
      loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def add(self, function: Callable[[], object]) -> None:
        """Schedules a call of `function` on the loop, without the caller's context variables.

        Raises:
          RuntimeError: If the loop is closed.
        """
        self._waiting.append(function)
        if self._is_woken:
            return
        try:
            self._is_woken = True
            loop = self._loop()
            if loop is not None:
                loop.call_soon_threadsafe(self._call_all)
        except BaseException as error:  # including Ctrl-C; the next call wakes the loop again, which is harmless
            self._is_woken = False
            if isinstance(error, RuntimeError):
                self._waiting.clear()  # the functions may refer to the loop
            raise

    def _call_all(self) -> None:
        self._is_woken = False  # first, so that functions added from now on wake the loop again
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()


_calls: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls]" = weakref.WeakKeyDictionary()


def calls_on(loop: asyncio.AbstractEventLoop) -> LoopCalls:
    """Returns the `LoopCalls` of a loop. All callers share it."""
    found = _calls.get(loop)
    return found if found is not None else _calls.setdefault(loop, LoopCalls(loop))


async def arrival(future: "Outcome[Any] | concurrent.futures.Future[Any]", seconds: float | None = None) -> bool:
    """Waits on the running loop until another thread has completed a future.

    Args:
      future: The future.
      seconds: The time limit in seconds; `None` for no limit.

    Returns:
      Whether the future is done.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    calls = calls_on(loop)

    def arrive() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done(_: object) -> None:
        try:
            calls.add(arrive)
        except RuntimeError:  # the loop is closed, so nothing waits any more
            return

    future.add_done_callback(done)
    timer = None if seconds is None else timers_on(loop).call_at(loop.time() + seconds, arrive)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.end()
    return future.done()


async def result_of(future: Outcome[_T]) -> _T:
    """Waits for a future that another thread completes, and returns its result or raises its error."""
    if not future.done():
        await arrival(future)
    return future.result()


class Ticks:
    """Calls functions on a loop several times a second. It may be used on that loop only.

    All functions share one timer, because a thousand sessions with their own timers would keep the loop busy.
    """

    def __init__(self) -> None:
        self._calls: dict[Callable[[], object], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Callable[[], object]) -> None:
        """Adds a function, which must be quick and must not raise."""
        self._calls[call] = None
        if self._timer is None:
            self._wait()

    def discard(self, call: Callable[[], object]) -> None:
        """Removes a function. Does nothing if the function has not been added."""
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
    """An event loop on a daemon thread. The loop is never stopped, since an idle loop takes no processor time.

    Args:
      loop: A loop that the caller runs. By default, a new loop with its own thread is created on first use.

    Attributes:
      ticks: A `Ticks` object that calls functions on the loop several times a second.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.renew()
        self._loop = loop
        renew_after_fork(self)

    def renew(self) -> None:
        """Starts without a loop. Also called after a fork, since a child does not have the threads of its parent."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ticks = Ticks()

    def time(self) -> float:
        """Returns the time of the loop in seconds. It is safe in finalizers, since it acquires no lock."""
        return time.monotonic() if self._loop is None else self._loop.time()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, which is started if needed.

        Raises:
          ClosedError: If this process was forked from a process that uses gRPC, or if the owner of the loop has closed
            the loop.
          ResourceLimitError: If the thread of the loop cannot be started.
        """
        fork_guard.check()
        with self._lock:
            if self._loop is None:
                self._loop = start_loop(lambda loop: loop.run_forever(), name=THREAD_NAME)
            elif self._loop.is_closed():
                raise ClosedError("The event loop of this connection is closed because its simulation has ended")
            return self._loop

    def is_current(self) -> bool:
        """Returns whether the caller runs on the loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine on the loop, from any loop. Cancelling the caller cancels the coroutine and waits for it."""
        if self.is_current():
            return await coroutine
        submitted = self.submit(coroutine)
        try:
            await arrival(submitted)
            # A subclass does not count, because the work itself may have raised it.
            if type(submitted.exception()) is concurrent.futures.CancelledError:
                raise asyncio.CancelledError
            return submitted.result()
        except asyncio.CancelledError:
            submitted.add_done_callback(drop_outcome)
            if submitted.cancel():
                await arrival(submitted, _CANCEL_SECONDS)
            raise
        finally:
            del submitted  # breaks a reference cycle: its error refers to this frame

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> "Submitted[_T]":
        """Starts a coroutine on the loop, from any thread. Returns its outcome, which can cancel the coroutine."""
        return Submitted(self._loop_for(coroutine), coroutine)

    def run_sync(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Runs a coroutine on the loop, blocking the calling thread until it has ended, and returns the result.

        Raises:
          RuntimeError: If called on the loop itself, which would wait for itself.
          TimeoutError: If the coroutine takes longer than `timeout` seconds. The coroutine is then cancelled.
        """
        if self.is_current():
            coroutine.close()
            raise RuntimeError(
                "Expected a call from outside the transport's loop, found a call on that loop; await the coroutine "
                "instead"
            )
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # breaks a reference cycle: its error refers to this frame

    def _loop_for(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.AbstractEventLoop:
        try:
            return self.loop
        except BaseException:
            coroutine.close()  # avoids Python's warning about coroutines that never start
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Schedules a call on the loop, if there is one. It is safe in finalizers. `callback` must not raise."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, context=contextvars.Context())

    def finish(self, coroutine: Coroutine[Any, Any, object], timeout: float = 2.0) -> None:
        """Runs a coroutine that closes a resource. Waits for it unless that would block a loop, and never raises."""
        with contextlib.suppress(Exception):  # if the peer is dead, no resource remains open
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                self.run_sync(coroutine, timeout)
            else:
                self.submit(coroutine)


class Submitted(Outcome[_T]):
    """The outcome of a coroutine that `IoLoop.submit` started. It is set when the coroutine ends or is cancelled."""

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
        """Runs the coroutine and sets the outcome. A callback of the task would set it one loop iteration later."""
        try:
            self._task = asyncio.current_task()
            if self._is_cancelled:  # cancelled before the task started
                coroutine.close()
                raise asyncio.CancelledError
            result = await coroutine
        except asyncio.CancelledError:
            self.set(None, concurrent.futures.CancelledError())
        except BaseException as error:
            self.set(None, error)
        else:
            self.set(result, None)
        finally:
            self._task = None
            del self  # breaks a reference cycle: an error refers to this frame


def start_apart(coroutine: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
    """Starts a task on the running loop that may outlive its caller.

    The task does not inherit the caller's context variables. These refer to the execution context, and a task that runs
    until the execution context is dropped would keep it alive.
    """
    return contextvars.Context().run(asyncio.ensure_future, coroutine)


io_loop = IoLoop()
