"""The handle to the outcome of a call, which `Client` returns before the call has ended."""

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import Any, Generic, TypeVar, cast

from fedstack.errors import ClosedError, ClosureCancelledError
from fedstack.executors.concurrency.coroutines import raised_again
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.transport.peers.io_loop import Outcome, arrival, io_loop
from fedstack.transport.wire.status import Code, code_of

_T = TypeVar("_T")


class StatusOrResult(Generic[_T]):
    """The outcome of a call that may still be running.

    Await the object, or call `get_value`, `get_error` or `is_ok`, which block until the call has ended. Dropping the
    object does not cancel the call.
    """

    def __init__(self, outcome: Outcome[_T], method_name: str, target: str) -> None:
        self._outcome = outcome
        self._method_name = method_name
        self._target = target

    @property
    def _call(self) -> str:
        return f"the call of {self._method_name!r} at {self._target}"

    @property
    def _cancelled(self) -> str:
        return f"{self._call} was cancelled"

    def is_ok(self) -> bool:
        """Waits for the call, and returns whether it succeeded. Does not raise the error of a failed call."""
        return self._error() is None

    def get_error(self) -> tuple[Code, str]:
        """Waits for the call, and returns its status code and error message: `Code.OK` and `""` if it succeeded."""
        error = self._error()
        if error is None:
            return Code.OK, ""
        if isinstance(error, (concurrent.futures.CancelledError, asyncio.CancelledError)):
            return Code.CANCELLED, self._cancelled
        return code_of(cast(Exception, error)), str(error)

    def get_value(self) -> _T:
        """Waits for the call, and returns its result. Repeated calls return the same object.

        Raises:
          ClosureCancelledError: If the call was cancelled.
          FedstackError: If the call failed.
        """
        error = self._error()
        if error is None:
            return self._outcome.result()
        if isinstance(error, concurrent.futures.CancelledError):
            raise ClosureCancelledError(self._cancelled)
        error = raised_again(cast(Exception, error))
        try:
            raise without_own_frames(error).with_traceback(None) from error.__cause__
        finally:
            del error  # break the reference cycle between the error and this frame

    def done(self) -> bool:
        """Returns whether the call has ended."""
        return self._outcome.done()

    def cancel(self) -> bool:
        """Requests cancellation of the call on the client and on the server.

        Returns:
          Whether the call had not ended yet.
        """
        return self._outcome.cancel()

    def _error(self) -> BaseException | None:
        if not self._outcome.done() and io_loop.is_current():
            raise ClosedError(
                f"A blocking wait for {self._call} would never end on the event loop that runs the call; await the "
                "call or, if a method registered with inline=True waits for it, register that method without inline"
            )
        return self._outcome.exception()

    def __await__(self) -> Generator[Any, None, _T]:
        return self._awaited().__await__()

    async def _awaited(self) -> _T:
        if not self._outcome.done():
            try:
                await arrival(self._outcome)
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.get_value()

    def __repr__(self) -> str:
        state = "running"
        if self._outcome.done():
            state = "ok" if self.is_ok() else self.get_error()[0].name
        return f"<StatusOrResult of {self._call}: {state}>"
