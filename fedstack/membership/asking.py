"""Checks whether peers are reachable: everything that a membership asks of stubs and their connections."""

import asyncio
import contextlib
import contextvars
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Generic

from fedstack.errors import FedstackError
from fedstack.foundations.deadline import Deadline
from fedstack.membership.member import AnyMember, M, MemberState
from fedstack.membership.members import FIRST_PAUSE, LONGEST_PAUSE, Members
from fedstack.transport.peers.io_loop import IoLoop, start_apart

# The time limit for checking whether a member that was away is listening again.
_LOOK_SECONDS = 0.5
# How often to look for losses while there are observers.
_WATCH_SECONDS = 0.1
# The pause before a member is asked again whether it drains, if asking has failed, or whether it has stopped.
_AGAIN_SECONDS = 1.0


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
        self._drains: dict[M, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked = -math.inf
        weakref.finalize(self, _abandon, (self._tasks, self._drains), io).atexit = False

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

    def follow(self, member: M) -> None:
        """Notices when a ready member begins to drain, and when it has stopped then; ends that for a lost member."""
        if member.is_ready and member not in self._drains:
            self._drains[member] = start_apart(_follow(member, weakref.WeakMethod(self._drained)))
        elif member.state not in (MemberState.READY, MemberState.DRAINING) and member in self._drains:
            self._drains.pop(member).cancel()

    def _drained(self, member: M, error: Exception | None) -> None:
        """Records that a member drains or, with an error, that it has stopped."""
        if error is None:
            self._members.drains(member)
        else:
            self._members.lost(member, error)
        _call(self._go_on)

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
        tasks = [*self._tasks.values(), *self._drains.values()]
        for task in self._drains.values():
            task.cancel()
        self._drains.clear()  # a cancelled task keeps its frames, which keep the connection
        self.step()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(member: M, heard: "weakref.WeakMethod[Callable[[M, Exception | None], None]]") -> None:
    """Asks a member whether it is reachable. Refers to that member only, and so keeps nothing else alive."""
    found: Exception | None = None
    try:
        await _reach(member)
    except Exception as error:
        found = error.with_traceback(None)  # its frames would otherwise be kept while the member is away
    _tell(heard, member, found)


def _tell(
    heard: "weakref.WeakMethod[Callable[[M, Exception | None], None]]", member: M, error: Exception | None
) -> None:
    hear = heard()
    if hear is not None:
        hear(member, error)


async def _follow(member: M, heard: "weakref.WeakMethod[Callable[[M, Exception | None], None]]") -> None:
    """Waits until a member reports that it drains, and then until it has stopped."""
    connection, found = member.stub.connection, None
    async for _ in Deadline().attempts(itertools.repeat(_AGAIN_SECONDS)):
        with contextlib.suppress(FedstackError):  # losses are noticed elsewhere
            await connection.until_draining()
            break
    _tell(heard, member, None)
    async for _ in Deadline().attempts(itertools.repeat(_AGAIN_SECONDS)):
        try:
            await connection.check_alive(_AGAIN_SECONDS)
        except FedstackError as error:
            found = error.with_traceback(None)
            break
    _tell(heard, member, found)


def _call(method: "weakref.WeakMethod[Callable[[], None]]") -> None:
    """Calls a method if its object still exists."""
    found = method()
    if found is not None:
        found()


def _abandon(tasks: "Sequence[dict[M, asyncio.Task[None]]]", io: IoLoop) -> None:
    """Stops asking on behalf of a membership that is gone; a finalizer."""

    def end() -> None:
        for some in tasks:
            for task in some.values():
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
