"""Lets callers on any thread schedule closures, wait for closures, and fetch their values."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar, cast

from fedstack.errors import ClosureCancelledError, DeadlineExceededError
from fedstack.executors.concurrency.coroutines import gather, raised_again
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_number
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.service.coordinator.calls.closures import Closure, ClosureState
from fedstack.service.coordinator.driver import Driver

_T = TypeVar("_T")


def check_timeout(timeout: object) -> None:
    """Checks a timeout that a user has passed.

    Raises:
      InvalidValueError: If `timeout` is neither `None` nor a non-negative number.
    """
    if timeout is not None:
        check_number("timeout", timeout, endless=True)


async def within(work: Awaitable[_T], seconds: float | None, what: object) -> _T:
    """Awaits work, and cancels it when a user's time limit expires.

    Args:
      work: The work.
      seconds: The time limit; `None` for no limit.
      what: The object to name in the error message.

    Raises:
      DeadlineExceededError: If the work takes longer than `seconds`.
    """

    def late() -> DeadlineExceededError:
        return DeadlineExceededError(f"{what!r} did not finish within {seconds:g} s; wait again, or raise the timeout")

    return await Deadline(seconds).wait(work, late)


class ScheduledCalls:
    """The closures of one coordinator, as seen by callers on any thread. Coroutines run on the driver's loop.

    Args:
      driver: Runs the closures.

    Attributes:
      driver: The driver.
      loop: The driver's event loop.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.loop = driver.loop
        self._scheduler = driver.scheduler
        self._lock = driver.lock

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs work on the loop while the calling thread waits. Removes fedstack's own frames from tracebacks."""
        try:
            return self.loop.run_sync(work)
        except Exception as error:
            raise without_own_frames(error).with_traceback(None) from error.__cause__

    def schedule(self, closure: Closure) -> bool:
        """Schedules a closure unless the queue is full, and returns whether the closure was scheduled.

        Raises:
          Exception: The error of an earlier closure, unless closures continue after errors.
          ClosedError: If the driver has ended.
        """
        with self._lock:
            self._check(not self._scheduler.goes_on)
            if not self._scheduler.has_room:
                return False
            self._scheduler.schedule(closure)
        self.driver.wake()
        return True

    def is_done(self) -> bool:
        """Returns whether all closures have ended.

        Raises:
          Exception: The error of a closure.
        """
        with self._lock:
            self._check(not self._scheduler.goes_on)
            return self._scheduler.is_idle

    def cancel(self, closure: Closure) -> bool:
        """Cancels a closure unless it has ended, and returns whether the closure was cancelled."""
        with self._lock:
            had_not_ended = self._scheduler.cancel(closure)
        self.driver.wake()
        return had_not_ended

    def when_ended(self, closure: Closure, callback: Callable[[], None]) -> None:
        """Calls a callback on the loop once a closure has ended, or immediately if the closure has already ended."""
        with self._lock:
            if not closure.has_ended:
                closure.callbacks[callback] = None
                return
        callback()

    def forget(self, closure: Closure, callback: Callable[[], None]) -> None:
        """Removes a callback for `when_ended` if it has not been called. Takes no lock, so it is safe in finalizers."""
        closure.callbacks.pop(callback, None)

    def _check(self, errors: bool = True) -> None:
        """Raises the first error that a closure has raised since the last check, if any."""
        self.driver.check_open()
        if errors and self._scheduler.has_errors:
            first, *others = self._scheduler.take_errors()
            error = raised_again(first)
            with contextlib.suppress(AttributeError):  # a user's exception class may not accept attributes
                cast(Any, error).errors = (first, *others)
            try:
                raise error
            finally:
                del error, first, others

    # On the loop.

    async def room(self) -> None:
        """Waits until another closure can be scheduled, or until a closure has failed."""
        await self.driver.until(lambda: self._scheduler.has_room or self._scheduler.has_errors)

    async def join(self, timeout: float | None = None, what: object = None) -> None:
        """Waits until all closures have ended, and a while for those that were cancelled while they ran.

        Args:
          timeout: The time limit in seconds; `None` for no limit.
          what: The object to name in the error message.

        Raises:
          Exception: The error of a closure. Raised once all closures have ended, or after `timeout` if it has cancelled
            those that still run.
          DeadlineExceededError: If the closures take longer than `timeout`, and none has failed.
        """
        try:
            await within(self.driver.until(lambda: self._scheduler.is_idle), timeout, what)
        except DeadlineExceededError:
            with self._lock:
                self._check()
            raise
        with self._lock:
            self._check()

    def begin(self, closures: Iterable[Closure]) -> bool:
        """Starts fetching values, in only a few calls to each worker. Fetches each value once, even if no caller waits.

        Returns:
          Whether all values or their errors are already in this process, so that the caller need not wait.
        """
        awaited = [closure for closure in closures if not closure.is_here and closure.refusal is None]
        there = [closure for closure in awaited if closure.has_ended and not self.driver.closed]
        if there:
            with self._lock:
                for closure in there:
                    self._scheduler.want(closure)
            self.driver.turn()
        return not awaited

    async def fetch(self, closures: Collection[Closure]) -> None:
        """Waits until the values of closures are in this process.

        Call `begin` first: values that are ready are then fetched together.

        Raises:
          Exception: The error of the first closure that fails.
          ClosureCancelledError: If a closure was cancelled, and none of the others has failed.
          ClosedError: If the driver ends before all values are in this process.
        """
        try:
            await gather([self._fetched(closure) for closure in closures if closure.copy is None])
        except ClosureCancelledError:
            # Closures are also cancelled because another one has failed, and then its error is what the caller needs.
            for closure in closures:
                if closure.state is ClosureState.FAILED and closure.error is not None:
                    raise raised_again(closure.error) from None
            raise

    async def _fetched(self, closure: Closure) -> None:
        """Waits until the value of a closure is in this process. Cancelling the wait does not stop the fetch."""
        while closure.copy is None:
            if closure.error is not None:
                raise raised_again(closure.error)
            if closure.refusal is not None:
                refusal, closure.refusal = closure.refusal, None
                raise raised_again(refusal)
            if not closure.wanted or self.driver.closed:
                self.driver.check_open()
                with self._lock:
                    self._scheduler.want(closure)
                if closure.has_ended:
                    self.driver.wake()
            try:
                await self.driver.changed(closure)
            except asyncio.CancelledError:
                with self._lock:
                    self._scheduler.unwant(closure)
                raise

    def __repr__(self) -> str:
        scheduler = self._scheduler
        workers = f"{len(scheduler.workers)} worker{'s' * (len(scheduler.workers) != 1)}"
        return f"{workers}: {scheduler.waiting} waiting, {scheduler.running} running, {scheduler.values} values held"
