"""Defines objects that users enter with `with` and `async with`; the end of the last block closes them."""

import asyncio
from types import TracebackType
from typing import NoReturn, TypeVar

from fedstack.errors import ClosedError, ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import off_loop

_C = TypeVar("_C", bound="ClosesOnExit")


class ClosesOnExit:
    """The base of executors, factories, contexts and pools: a block yields the object, and its end closes it.

    Blocks may be nested, and in several threads and tasks: the last to end closes the object. The end of an
    `async with` block waits for that without blocking the event loop.
    """

    _closed = False

    def close(self) -> None:
        """Closes the object. Idempotent; never raises."""
        raise NotImplementedError

    def _closed_error(self) -> ClosedError:
        """Returns the error for uses after `close`."""
        return ClosedError(f"This {type(self).__name__} is closed; create a new one")

    def _entered(self) -> None:
        """Called when a block begins."""

    async def _connected(self) -> None:
        """Awaited when an `async with` block begins."""

    def _left(self, error: BaseException | None) -> None:
        """Called when a block ends, before the object is closed.

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
            f"This {type(self).__name__} cannot be copied or pickled: its threads and connections belong to this "
            "process; use the object itself, and create a new one in another process"
        )

    @property
    def is_entered(self) -> bool:
        """Whether a block is open."""
        return bool(self._blocks)

    @property
    def _blocks(self) -> list[None]:
        """An entry for each open block; threads need no lock to add and remove one."""
        return vars(self).setdefault("_open_blocks", [])

    def _was_last(self) -> bool:
        """Removes a block; returns whether it was the last."""
        if self.is_entered:
            self._blocks.pop()
        return not self.is_entered

    async def _close_off_loop(self) -> None:
        try:
            await off_loop(self.close)
        except ResourceLimitError:  # no thread is available
            self.close()
        except asyncio.CancelledError:
            self.close()  # `off_loop` may not have begun it
            raise
