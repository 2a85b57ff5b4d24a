"""Queries peers: checks whether they are reachable and usable, and watches ready peers for draining."""

import asyncio
import contextlib
import contextvars
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Generic

from fedstack.errors import FedstackError, WorkerUnavailableError
from fedstack.foundations.deadline import Deadline
from fedstack.membership.member import AnyMember, M, MemberState
from fedstack.membership.members import FIRST_PAUSE, LONGEST_PAUSE, Members
from fedstack.transport.peers.io_loop import IoLoop, start_apart

# The time limit for checking whether a member that was away is listening again.
_LOOK_SECONDS = 0.5
# The interval between checks for losses while there are observers.
_WATCH_SECONDS = 0.1
# The pause before asking again whether a member is draining (after a failed query) or whether it has stopped.
_AGAIN_SECONDS = 1.0
# A process that does not report within this time that it is draining is another one, which was started at the address.
_DRAINING_SECONDS = 2.0


class Asker(Generic[M]):
    """A component that queries members when the state machine decides to. It runs on the transport's loop.

    Args:
      members: The state machine, which receives the answers.
      io: The transport's loop.
      go_on: A method that calls `step`. It is called after an answer, and when the next check or query is due. The
        queries end once the object that the method is bound to is garbage-collected.
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
        """Queries the members that are due, and cancels queries that are no longer needed.

        Args:
          watches: Whether to check for losses periodically even if no query is scheduled.
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
        """Checks, without a call, which members are known to have ended. The cost grows with the number of members."""
        self._looked = self._members.clock()
        for member in self._members.members:
            loss = member.stub.loss()
            # The known loss of a member that was found again may be outdated; the answer of the member decides.
            if loss is not None and (member.stub.is_gone or member.state is not MemberState.BACK):
                self._members.lost(member, loss, for_good=member.stub.is_gone)

    def follow(self, member: M) -> None:
        """Starts to watch a ready member for draining and its later stop; stops watching a lost member."""
        if member.is_ready and member not in self._drains:
            self._drains[member] = start_apart(_follow(member, weakref.WeakMethod(self._drained)))
        elif member.state not in (MemberState.READY, MemberState.DRAINING) and member in self._drains:
            self._drains.pop(member).cancel()

    def _drained(self, member: M, error: Exception | None) -> None:
        """Records that a member is draining or, if `error` is set, that the member has stopped."""
        if error is None:
            self._members.drains(member)
        else:
            self._members.lost(member, error)
        _call(self._go_on)

    def heard(self, member: M, error: Exception | None) -> None:
        """Records that a member has answered or failed. Called by the task that queried the member."""
        if self._tasks.get(member) is not asyncio.current_task():
            return  # cancelled at the moment when the query ended
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
        """Ends all queries, and returns once all tasks have ended. The state machine must already be closed."""
        tasks = [*self._tasks.values(), *self._drains.values()]
        for task in self._drains.values():
            task.cancel()
        self._drains.clear()  # a cancelled task keeps its frames, which keep the connection
        self.step()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(member: M, heard: "weakref.WeakMethod[Callable[[M, Exception | None], None]]") -> None:
    """Queries a member. The task refers only to this member, so that it keeps no other object alive."""
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
    """Waits until a member reports that it is draining, and then until it has stopped or was started again."""
    connection, found = member.stub.connection, None
    async for _ in Deadline().attempts(itertools.repeat(_AGAIN_SECONDS)):
        with contextlib.suppress(FedstackError):  # other code detects losses
            await connection.until_draining()
            break
    _tell(heard, member, None)
    async for _ in Deadline().attempts(itertools.repeat(_AGAIN_SECONDS)):
        try:
            await connection.check_alive(_AGAIN_SECONDS)
            await Deadline(_DRAINING_SECONDS).wait(connection.until_draining(), lambda: _restarted(member))
        except FedstackError as error:
            found = error.with_traceback(None)
            break
    _tell(heard, member, found)


def _restarted(member: AnyMember) -> WorkerUnavailableError:
    return WorkerUnavailableError(f"The worker at {member.address} has stopped, and another one was started there")


def _call(method: "weakref.WeakMethod[Callable[[], None]]") -> None:
    """Calls a method if its object still exists."""
    found = method()
    if found is not None:
        found()


def _abandon(tasks: "Sequence[dict[M, asyncio.Task[None]]]", io: IoLoop) -> None:
    """Cancels the queries of a membership that was garbage-collected. Used as a finalizer."""

    def end() -> None:
        for some in tasks:
            for task in some.values():
                task.cancel()

    io.call_soon(end)


async def _reach(member: AnyMember) -> None:
    """Returns once a member can be reached and has reported its capabilities.

    Raises:
      FedstackError: If the member cannot be reached, or cannot be used.
    """
    while True:
        await member.stub.connection.wait_ready(LONGEST_PAUSE)
        await member.ask()
        loss = member.stub.loss()
        if loss is None:
            return
        if member.stub.is_gone:
            raise loss
        await asyncio.sleep(FIRST_PAUSE)  # the member was restarted, and its stub still reports the old loss


async def listening(members: Sequence[M]) -> list[M]:
    """Returns those of the given members that can be reached now, regardless of their known state."""
    found = await asyncio.gather(*(member.stub.connection.look(_LOOK_SECONDS) for member in members))
    return [member for member, listens in zip(members, found) if listens]
