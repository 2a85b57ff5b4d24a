"""Lets callers on any thread schedule closures, wait for them, and fetch their values."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

from fedstack.errors import DeadlineExceededError
from fedstack.executors.concurrency.coroutines import gather, raised_again
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_number
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.service.coordinator.calls.closures import Closure
from fedstack.service.coordinator.driver import Driver

_T = TypeVar("_T")


def check_timeout(timeout: object) -> None:
    """Checks a timeout that a user gives.

    Raises:
      InvalidValueError: If it is neither `None` nor a number of at least 0.
    """
    if timeout is not None:
        check_number("timeout", timeout, endless=True)


async def within(work: Awaitable[_T], seconds: float | None, what: object) -> _T:
    """Awaits work within a user's time limit.

    Raises:
      DeadlineExceededError: If it takes longer; it is cancelled.
    """

    def late() -> DeadlineExceededError:
        return DeadlineExceededError(f"Expected an outcome within {seconds:g} s, found none of {what!r}")

    return await Deadline(seconds).wait(work, late)


class ScheduledCalls:
    """The closures of one coordinator, for callers on any thread; coroutines run on the driver's loop.

    Args:
      driver: Runs the closures.

    Attributes:
      driver: As above.
      loop: The driver's loop.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.loop = driver.loop
        self._scheduler = driver.scheduler
        self._lock = driver.lock

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs work on the loop for a caller on another thread; errors carry only the user's own frames."""
        try:
            return self.loop.run_sync(work)
        except Exception as error:
            raise without_own_frames(error).with_traceback(None) from error.__cause__

    def schedule(self, closure: Closure) -> bool:
        """Schedules a closure if there is room for it; returns whether there was.

        Raises:
          Exception: The error of an earlier closure; if closures continue after errors, only `join` raises it.
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
        """Returns whether nothing is left to do.

        Raises:
          Exception: The error of a closure.
        """
        with self._lock:
            self._check(not self._scheduler.goes_on)
            return self._scheduler.is_idle

    def cancel(self, closure: Closure) -> bool:
        """Cancels a closure; returns whether it had not ended."""
        with self._lock:
            had_not_ended = self._scheduler.cancel(closure)
        self.driver.wake()
        return had_not_ended

    def when_ended(self, closure: Closure, callback: Callable[[], None]) -> None:
        """Calls a callback once a closure has ended: on the loop, or at once if it already has."""
        with self._lock:
            if not closure.has_ended:
                closure.callbacks[callback] = None
                return
        callback()

    def forget(self, closure: Closure, callback: Callable[[], None]) -> None:
        """Undoes `when_ended` if the callback has not been called. Safe in finalizers: it takes no lock."""
        closure.callbacks.pop(callback, None)

    def _check(self, errors: bool = True) -> None:
        """Raises the first error of closures since the last check."""
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
        """Returns when there is room for another closure, or a closure has failed."""
        await self.driver.until(lambda: self._scheduler.has_room or self._scheduler.has_errors)

    async def join(self, timeout: float | None = None, what: object = None) -> None:
        """Returns when nothing is left to do.

        Args:
          timeout: How long it may take, in seconds.
          what: A description of the awaited object, for error messages.

        Raises:
          Exception: The error of a closure, once nothing is running anymore.
          DeadlineExceededError: If it takes longer.
        """
        await within(self.driver.until(lambda: self._scheduler.is_idle), timeout, what)
        with self._lock:
            self._check()

    def begin(self, closures: Iterable[Closure]) -> bool:
        """Starts fetching values, each once, grouped by worker into a few calls. Fetching continues without a waiter.

        Returns:
          Whether there is nothing to wait for.
        """
        awaited = [closure for closure in closures if not closure.is_here and closure.refusal is None]
        there = [closure for closure in awaited if closure.has_ended and not self.driver.closed]
        if there:
            with self._lock:
                for closure in there:
                    self._scheduler.want(closure)
            self.driver.turn()
        return not awaited

    async def fetch(self, closures: Iterable[Closure]) -> None:
        """Returns when values have been fetched whose fetch has begun, as far as they were available.

        Raises:
          Exception: The error of the first closure to fail.
          ClosedError: If the driver ends before all values are here.
        """
        await gather([self._fetched(closure) for closure in closures if closure.copy is None])

    async def _fetched(self, closure: Closure) -> None:
        """Returns when the value of a closure is here. Cancelling the wait does not stop the fetch."""
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
