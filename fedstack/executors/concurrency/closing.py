"""Defines the base class of context managers that are closed when their last `with` or `async with` block ends."""

import asyncio
from types import TracebackType
from typing import NoReturn, TypeVar

from fedstack.errors import ClosedError, ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import off_loop

_C = TypeVar("_C", bound="ClosesOnExit")


class ClosesOnExit:
    """The base class of executors, factories, contexts and pools, which `with` and `async with` blocks close.

    Blocks may be nested, and several threads and tasks may be in a block at the same time. The last block to end closes
    the object. An `async with` block does not block the event loop while the object is closed.
    """

    _closed = False

    def close(self) -> None:
        """Closes the object. Idempotent; never raises."""
        raise NotImplementedError

    def _closed_error(self) -> ClosedError:
        """Returns the error for using the object after `close`."""
        return ClosedError(f"This {type(self).__name__} is closed; create a new one")

    def _entered(self) -> None:
        """Runs when a block begins; for subclasses to override."""

    async def _connected(self) -> None:
        """Runs when an `async with` block begins, after `_entered`; for subclasses to override."""

    def _left(self, error: BaseException | None) -> None:
        """Runs when a block ends, before the object is closed; for subclasses to override.

        Args:
          error: The error that ended the block, if any.
        """

    def __enter__(self: _C) -> _C:
        if self._closed:
            raise self._closed_error()
        self._entered()
        self._blocks.append(None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._left(error)
        finally:
            if self._was_last():
                self.close()

    async def __aenter__(self: _C) -> _C:
        self.__enter__()
        try:
            await self._connected()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._left(error)
        finally:
            if self._was_last():
                await self._close_off_loop()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"This {type(self).__name__} cannot be copied or pickled, because its threads and connections belong to "
            "this process; use the object itself in this process, and create a new one in any other process"
        )

    @property
    def is_entered(self) -> bool:
        """Whether a block is open."""
        return bool(self._blocks)

    @property
    def _blocks(self) -> list[None]:
        """A list with an entry for each open block. Threads can add and remove entries without a lock."""
        return vars(self).setdefault("_open_blocks", [])

    def _was_last(self) -> bool:
        """Removes a block and returns whether it was the last open block."""
        if self.is_entered:
            self._blocks.pop()
        return not self.is_entered

    async def _close_off_loop(self) -> None:
        try:
            await off_loop(self.close)
        except ResourceLimitError:  # no thread is available
            self.close()
        except asyncio.CancelledError:
            self.close()  # `off_loop` may have been cancelled before `close` started
            raise
