"""Checks whether peers are reachable: everything that a membership asks of stubs and their connections."""

import asyncio
import contextvars
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Generic

from fedstack.membership.member import AnyMember, M, MemberState
from fedstack.membership.members import FIRST_PAUSE, LONGEST_PAUSE, Members
from fedstack.transport.peers.io_loop import IoLoop, start_apart

# The time limit for checking whether a member that was away is listening again.
_LOOK_SECONDS = 0.5
# How often to look for losses while there are observers.
_WATCH_SECONDS = 0.1


class Asker(Generic[M]):
    """Asks members whether they are reachable when the state machine requests it. Runs on the transport's loop.

    Args:
      members: The state machine, which receives the answers.
      io: The transport's loop.
      go_on: A method to call after an answer, and when it is time to look or to ask again; it calls `step`. Asking
        ends once the object that the method is bound to is garbage-collected.
    """

    def __init__(self, members: Members[M], io: IoLoop, go_on: Callable[[], None]) -> None:
        self._members = members
        self._go_on = weakref.WeakMethod(go_on)
        self._tasks: dict[M, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked = -math.inf
        weakref.finalize(self, _abandon, self._tasks, io).atexit = False

    def step(self, *, watches: bool = False) -> None:
        """Asks the members that are due, and stops asking those that no longer need to be asked.

        Args:
          watches: Whether to look for losses periodically even if no member is to be asked.
        """
        if watches and self._seconds_to_look() <= 0:
            self.look()
        for member in self._members.take_at_rest():
            if (task := self._tasks.pop(member, None)) is not None:
                task.cancel()
        for member in self._members.due():
            self._tasks[member] = start_apart(_ask(member, weakref.WeakMethod(self.heard)))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = self._members.seconds_to_due()
        if watches:
            seconds = min(self._seconds_to_look(), math.inf if seconds is None else seconds)
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, _call, self._go_on, context=contextvars.Context())

    def _seconds_to_look(self) -> float:
        return self._looked + _WATCH_SECONDS - self._members.clock()

    def look(self) -> None:
        """Checks, without asking them, which members are known to have ended; takes time for each member."""
        self._looked = self._members.clock()
        for member in self._members.members:
            loss = member.stub.loss()
            # For a member that was found again this may be outdated; its answer decides.
            if loss is not None and (member.stub.is_gone or member.state is not MemberState.BACK):
                self._members.lost(member, loss, for_good=member.stub.is_gone)

    def heard(self, member: M, error: Exception | None) -> None:
        """Records that a member has answered or failed; called by the task that asked it."""
        if self._tasks.get(member) is not asyncio.current_task():
            return  # cancelled just as the awaited work ended
        del self._tasks[member]
        loss = member.stub.loss()
        if error is None:
            self._members.answered(member)
        elif loss is not None and member.stub.is_gone:
            self._members.lost(member, loss, for_good=True)
        else:
            self._members.failed(member, loss or error)
        _call(self._go_on)

    async def end(self) -> None:
        """Stops asking, and returns once all tasks have ended; the state machine must be closed before."""
        tasks = list(self._tasks.values())
        self.step()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(member: M, heard: "weakref.WeakMethod[Callable[[M, Exception | None], None]]") -> None:
    """Asks a member whether it is reachable. Refers to that member only, and so keeps nothing else alive."""
    found: Exception | None = None
    try:
        await _reach(member)
    except Exception as error:
        found = error.with_traceback(None)  # its frames would otherwise be kept while the member is away
    hear = heard()
    if hear is not None:
        hear(member, found)


def _call(method: "weakref.WeakMethod[Callable[[], None]]") -> None:
    """Calls a method if its object still exists."""
    found = method()
    if found is not None:
        found()


def _abandon(tasks: "dict[M, asyncio.Task[None]]", io: IoLoop) -> None:
    """Stops asking on behalf of a membership that is gone; a finalizer."""

    def end() -> None:
        for task in tasks.values():
            task.cancel()

    io.call_soon(end)


async def _reach(member: AnyMember) -> None:
    """Returns once a member can be reached and has reported its capabilities.

    Raises:
      FedstackError: If it cannot be reached, or cannot be used.
    """
    while True:
        await member.stub.connection.wait_ready(LONGEST_PAUSE)
        await member.ask()
        loss = member.stub.loss()
        if loss is None:
            return
        if member.stub.is_gone:
            raise loss
        await asyncio.sleep(FIRST_PAUSE)  # it was restarted, which is not known everywhere yet


async def listening(members: Sequence[M]) -> list[M]:
    """Returns the members among those given that can be reached now, whatever their state was before."""
    found = await asyncio.gather(*(member.stub.connection.look(_LOOK_SECONDS) for member in members))
    return [member for member, listens in zip(members, found) if listens]
