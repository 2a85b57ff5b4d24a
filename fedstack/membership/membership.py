"""Carries out the decisions of `Members`: queries peers, lets callers wait, and notifies observers."""

import asyncio
import contextvars
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

from fedstack.errors import ResourceLimitError
from fedstack.foundations.number_checks import check_number
from fedstack.membership import reaching
from fedstack.membership.asking import Asker, listening
from fedstack.membership.member import M, MemberState
from fedstack.membership.members import Members
from fedstack.membership.membership_observer import MembershipObserver, MembershipObservers, loss_in
from fedstack.membership.waits import GiveUp, LookFor, Pause, Use, Wait, closed_error
from fedstack.transport.peers.io_loop import IoLoop, io_loop

_logger = logging.getLogger(__name__)
# For how long a member is away before the log tells of it.
_TELL_SECONDS = 4.0
_SLACK_SECONDS = 0.01


class Membership(Generic[M]):
    """A changing set of peers, for callers on any event loop. Only this class uses the peers' connections.

    Members are queried from the first use until the membership is closed or garbage-collected.

    Args:
      members: The initial members. `close` also closes their stubs.
      connect_seconds: How long to wait for the first ready member, in seconds.
      clock: Returns the time in seconds; by default, the clock of the transport's loop.
    """

    def __init__(
        self,
        members: Sequence[M],
        connect_seconds: float = 10.0,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_number("connect_seconds", connect_seconds, endless=True)
        self._io: IoLoop = members[0].stub.io if members else io_loop
        self._members: Members[M] = Members(connect_seconds, clock or self._io.time)
        self._asker: Asker[M] = Asker(self._members, self._io, self._step)
        self._waiters: dict[asyncio.Future[None], None] = {}  # ordered, so that the longest waiter wakes first
        self._observers = MembershipObservers[M]()
        self._turns = asyncio.Lock()
        self._last_turn = -math.inf
        self._has_announced = False
        self._begun = self._members.clock()
        self._tell_seconds = min(connect_seconds, _TELL_SECONDS)
        self._lost_at: dict[M, float] = {}
        self._missed: set[M] = set()  # the members of whose absence the log tells
        self._closed = False
        self._events: deque[object] = deque()  # the events that have been posted and have not happened yet
        for member in members:
            self._join(member)

    @property
    def io(self) -> IoLoop:
        """The event loop that runs the connections."""
        return self._io

    @property
    def members(self) -> tuple[M, ...]:
        """All members."""
        return self._members.members

    # For callers.

    async def ready(self) -> list[M]:
        """Returns the ready members, of which there is at least one; waits for the first if necessary.

        Raises:
          NoWorkersError: If no member is ready within `connect_seconds`. The message lists all addresses and causes.
          FedstackError: If waiting does not help, as with a wrong token.
        """
        return self._all_ready() or await self._io.run(self._ready())

    def _all_ready(self) -> list[M] | None:
        """Returns all members if nothing has happened since they became ready, which saves a turn of the loop."""
        members = self.members
        is_quiet = not (self._events or self._closed or self._members.is_strained)
        if is_quiet and all(member.is_ready and member.stub.loss() is None for member in members):
            return list(members)
        return None

    def by_room(self, members: Sequence[M]) -> tuple[list[M], list[M]]:
        """Returns the members that may have room for a session, and the members that recently refused one."""
        by_room: tuple[list[M], list[M]] = [], []
        for member in members:
            by_room[self._members.is_full(member)].append(member)
        return by_room

    # Events of members. Any thread may call these methods; an event applies to all calls that follow.

    def add(self, member: M) -> M:
        """Adds a member, which is queried at once, and returns the member."""
        if self._closed:
            raise closed_error()
        self._post(lambda: self._join(member))
        return member

    def remove(self, member: M) -> None:
        """Stops using a member. Its running work continues, and its connection stays open until its stub is closed."""
        self._post(lambda: self._members.remove(member))

    def lost(self, member: M, error: Exception) -> Exception:
        """Records the loss of a member, which is then queried until it is back. Returns the best known cause."""
        found, for_good = member.stub.loss() or error, member.stub.is_gone
        self._post(lambda: self._members.lost(member, found, for_good=for_good))
        return found

    def returned(self, member: M) -> None:
        """Records a report that a member is back."""
        self._post(lambda: self._members.returned(member))

    def full(self, member: M, refusal: ResourceLimitError) -> None:
        """Records that a member has no room for a session."""

        def note() -> None:
            if self._members.full(member, refusal) and len(self.members) > 1:  # a sole member's error is raised
                _logger.warning("Continuing without the worker at %s: %s", member.address, refusal)

        self._post(note)

    def has_room(self, member: M) -> None:
        """Records that a member has room for a session again."""
        if member.refusal is not None:
            self._post(lambda: self._members.has_room(member))

    def subscribe(self, observer: MembershipObserver[M]) -> Callable[[], None]:
        """Subscribes an observer to changes of members, and returns a function that unsubscribes the observer.

        Losses that are known to a source of members, such as the end of a pool's process, are detected without a call.
        An observer that raises is removed.
        """
        end = self._observers.add(observer)
        self._post(self._follow)
        return end

    def close(self, users: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Closes the connections. Idempotent. Waits until they are closed unless the wait would block an event loop.

        Args:
          users: Functions that end the users of the connections, such as sessions. They run on the transport's loop,
            before the connections are closed: otherwise, the peers would keep the sessions for a while.
        """
        if not self._closed:
            self._closed = True
            self._io.finish(self._close(users))

    def _post(self, event: Callable[[], object]) -> None:
        """Runs an event on the transport's loop; events run in the order of these calls."""

        def happen() -> None:
            try:
                event()
            finally:
                self._events.popleft()
            self._step()

        self._events.append(event)
        self._io.loop.call_soon_threadsafe(happen, context=contextvars.Context())

    # From here on, everything runs on the transport's loop.

    def _follow(self) -> None:
        """Starts to watch all members for draining, on behalf of an observer."""
        for member in self.members:
            self._asker.follow(member)

    def _join(self, member: M) -> None:
        member.can_look = member.stub.connection.can_look
        self._members.add(member)

    async def _ready(self) -> list[M]:
        while True:
            members = await self._found()
            self._tell_of_missing()
            if not self._members.gap():
                return members
            async with self._turns:  # callers proceed in the order of their calls
                await asyncio.sleep(max(0.0, self._last_turn + self._members.gap() - self._members.clock()))
                self._last_turn = self._members.clock()
            if all(member.is_ready for member in members):  # otherwise, each caller would detect the loss by itself
                return members

    async def _found(self) -> list[M]:
        self._look()
        wait = Wait(self._members)
        timer = asyncio.get_running_loop().call_later(
            reaching.QUIET_SECONDS, self._announce, wait.seconds, context=contextvars.Context()
        )
        try:
            return await self._decided(wait)
        finally:
            timer.cancel()

    def _announce(self, seconds: float) -> None:
        """Logs that a caller is waiting, at most once until a member has become ready."""
        if self._members.ready or self._has_announced or seconds <= reaching.QUIET_SECONDS:
            return
        self._has_announced = True
        causes = {member.address: member.cause_after(reaching.QUIET_SECONDS) for member in self.members}
        reaching.say_waiting("the first ready worker", seconds, causes)

    async def _decided(self, wait: Wait[M]) -> list[M]:
        has_looked = True
        while True:
            match wait.decide():
                case Use() | GiveUp() if not has_looked:
                    has_looked = True
                case Use(members):
                    return members
                case GiveUp(error):
                    try:
                        raise error
                    finally:
                        del error  # breaks the reference cycle of the error and this frame
                case LookFor(members):
                    for member in await listening(members):
                        self._members.returned(member)
                case Pause(seconds):
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters[waiter] = None
                    try:
                        await asyncio.wait([waiter], timeout=seconds)
                    finally:
                        del self._waiters[waiter]
                    if waiter.done():
                        # Members that become ready one by one wake this caller once per member. Checking all members
                        # can therefore wait until a pause or the wait ends.
                        has_looked = False
                        continue
            self._look()

    def _look(self) -> None:
        self._asker.look()
        self._step()

    def _step(self) -> None:
        """Carries out the decisions that follow from events."""
        self._asker.step(watches=bool(self._observers) and not self._closed)
        changes = self._members.take_changes()
        for change in changes:
            if change.after is MemberState.READY:
                self._has_announced = False
                level = logging.INFO if change.member in self._missed else logging.DEBUG
                _logger.log(level, "The worker at %s is ready", change.member.address)
            elif change.after is MemberState.WRONG and len(self.members) > 1:  # a sole member's error is raised
                _logger.warning("Continuing without the worker at %s: %s", change.member.address, change.cause)
                self._missed.add(change.member)
            elif change.after is MemberState.AWAY:
                if loss_in(change) is not None:
                    self._lost_at[change.member] = self._members.clock()
                # A call that runs may take long.
                asyncio.get_running_loop().call_later(
                    self._tell_seconds + _SLACK_SECONDS, self._tell_of_missing, context=contextvars.Context()
                )
            if change.after in (MemberState.READY, MemberState.REMOVED):
                self._missed.discard(change.member)
                self._lost_at.pop(change.member, None)
            if self._observers and not self._closed:
                self._asker.follow(change.member)
            self._observers.tell(change)
        if changes:
            self._wake()

    def _tell_of_missing(self) -> None:
        """Tells of members that have been away for a while, if there are others."""
        if self._closed or not self._members.ready:
            return
        now = self._members.clock()
        for member in self.members:
            # A worker may still be starting; and when one is lost, a warning names the clients that run again.
            since = self._lost_at.get(member, self._begun)
            if member.state is MemberState.AWAY and now - since >= self._tell_seconds:
                self._miss(member)

    def _miss(self, member: M) -> None:
        """Logs that a member cannot be reached, once for each time that it is away."""
        if member not in self._missed and not member.supervised:  # a supervisor logs the loss itself
            self._missed.add(member)
            why = "it does not answer" if member.cause is None else member.line_of(member.cause)
            _logger.warning("Continuing without the worker at %s until it answers: %s", member.address, why)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _close(self, users: Sequence[Callable[[], Awaitable[None]]]) -> None:
        self._members.close()
        self._wake()
        await asyncio.gather(self._asker.end(), *(end() for end in users), return_exceptions=True)
        for member in self.members:
            await member.stub.close()

    def __repr__(self) -> str:
        return f"<Membership over {self._members!r}>"
