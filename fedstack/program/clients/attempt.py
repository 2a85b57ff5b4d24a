"""The calls of a program that update states of clients, until its state is saved with what they have updated."""

import asyncio
from collections.abc import Sequence
from typing import cast

import attrs

from fedstack.data.client_states.state_shards import StateShard
from fedstack.errors import ContextError
from fedstack.program.value_reference import is_told


class Attempt:
    """The calls since the states of clients were those of a version. A failed round, or a load, ends the attempt."""

    def __init__(self) -> None:
        # The calls that run, and those that have failed.
        self._calls: dict[asyncio.Task[object], None] = {}

    def begin(self, call: "asyncio.Task[object]") -> None:
        """Adds a call."""
        self._calls[call] = None

    def end(self, call: object) -> None:
        """Removes a call that has updated the states."""
        for one in list(self._calls):
            if one is call:
                del self._calls[one]

    def has(self, call: object) -> bool:
        """Returns whether a call belongs to this attempt and has not ended."""
        return any(one is call for one in list(self._calls))

    def calls(self) -> "Sequence[asyncio.Task[object]]":
        """Returns the calls that must succeed before a save, without failed ones whose errors the program knows."""
        for call in list(self._calls):
            if call.done() and not call.cancelled() and is_told(call.exception()):
                self._calls.pop(call, None)
        return list(self._calls)


@attrs.frozen(eq=False)
class Update:
    """The states as they were after an update.

    Attributes:
      shards: The shards that have them.
      next: The number of the next shard.
    """

    shards: Sequence[StateShard]
    next: int

    @property
    def staged(self) -> dict[str, object]:
        """What finds the states again, as JSON."""
        return {"shards": [[shard.name, shard.digest] for shard in self.shards], "next": self.next}


@attrs.define(eq=False)
class Mark:
    """What belongs to a state that is saved.

    Attributes:
      attempt: The calls since the states were those of a version.
      calls: The calls that must succeed first.
      last: The states after these calls, once they have ended.
    """

    attempt: Attempt
    calls: "Sequence[asyncio.Task[object]]"
    last: Update


async def ended(calls: "Sequence[asyncio.Task[object]]") -> None:
    """Waits until calls have ended, in whatever way."""
    running = [call for call in calls if not call.done()]
    if running:
        await asyncio.wait(running)


def check_succeeded(calls: "Sequence[asyncio.Task[object]]") -> None:
    """Raises the error of the first call that has failed.

    Raises:
      ContextError: If it was cancelled.
    """
    if any(call.cancelled() for call in calls):
        raise ContextError(
            "Expected the calls before a save to update the states of clients, found one that was cancelled, as calls "
            "are when their event loop ends; make the calls and the save of a round in one asyncio.run"
        )
    errors = [error for call in calls if (error := call.exception()) is not None]
    if errors:
        raise errors[0]


def given_up() -> ContextError:
    """Returns the error for what goes on from states that are no longer there."""
    return ContextError(
        "Expected a call or a save of the present round, found one from before the states of clients went back to "
        "those of an earlier version, as after a save that has failed, or a load; begin the round again"
    )


def silence(call: object) -> None:
    """Keeps asyncio from logging the error of a call of an earlier attempt, as the program knows that it has failed."""
    if isinstance(call, asyncio.Task):
        cast("asyncio.Task[object]", call).add_done_callback(_retrieve)


def _retrieve(call: "asyncio.Task[object]") -> None:
    if not call.cancelled():
        call.exception()
