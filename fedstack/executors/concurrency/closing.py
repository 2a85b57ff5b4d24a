"""Lets what can be closed be entered, with `with` and `async with`: the end of its last block closes it."""

import asyncio
from types import TracebackType
from typing import NoReturn, TypeVar

from fedstack.errors import ClosedError, ResourceLimitError
from fedstack.executors.concurrency.off_loop import off_loop

_C = TypeVar("_C", bound="ClosesOnExit")


class ClosesOnExit:
    """The base of executors, factories, contexts and pools: a block gives the object, and its end closes it.

    Blocks may be inside each other, and in several threads and tasks: the last of them to end closes it. The end of an
    `async with` block waits until that is done, and the event loop goes on meanwhile.
    """

    _closed = False

    def close(self) -> None:
        """Closes it. Idempotent; never raises."""
        raise NotImplementedError

    def _closed_error(self) -> ClosedError:
        """Returns the error for whoever uses it after that."""
        return ClosedError(f"This {type(self).__name__} is closed; create a new one")

    def _entered(self) -> None:
        """Does more where a block begins."""

    async def _connected(self) -> None:
        """Does what a block has to wait for; for `async with` only."""

    def _left(self, error: BaseException | None) -> None:
        """Does more where a block ends, before it is closed.

        Args:
          error: What ended the block, if it did not come to its end.
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
            f"This {type(self).__name__} cannot be copied or pickled: its threads and connections are of this process; "
            "use the object itself, and create a new one in another process"
        )

    @property
    def is_entered(self) -> bool:
        """Whether a block has begun that has not ended."""
        return bool(self._blocks)

    @property
    def _blocks(self) -> list[None]:
        """An entry for each block that has not ended; threads need no lock to add and take one."""
        return vars(self).setdefault("_open_blocks", [])

    def _was_last(self) -> bool:
        """Counts a block no longer; returns whether there is none now."""
        if self.is_entered:
            self._blocks.pop()
        return not self.is_entered

    async def _close_off_loop(self) -> None:
        try:
            await off_loop(self.close)
        except ResourceLimitError:  # there is no thread for it
            self.close()
        except asyncio.CancelledError:
            self.close()  # it may not have begun
            raise
