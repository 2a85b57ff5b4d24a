"""Decides which members are ready, which to ask again and when: a state machine without sockets, tasks or logs."""

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic

import attrs

from fedstack.computations.types.language import RetryableError
from fedstack.errors import DeadlineExceededError, ResourceLimitError
from fedstack.membership.member import M, MemberState

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
# How long a member that had no room is not asked again while others have room.
FULL_SECONDS = 5.0
# How long callers wait for each other after a member was overloaded, at first and at most; how long it takes until that
# time is halved, and until the same member may double it again.
_FIRST_GAP, _LONGEST_GAP = 0.01, 1.0
_HALF_SECONDS = 15.0
_STRAIN_SECONDS = 5.0
_NOT_AWAY = (MemberState.READY, MemberState.DRAINING, MemberState.BACK, MemberState.REMOVED)
# How long each wait for members lasts after a failed wait.
AGAIN_SECONDS = 0.25


@attrs.frozen
class Change(Generic[M]):
    """A change of a member's state.

    Attributes:
      member: The member.
      before: Its state until the change.
      after: Its state from the change on.
      cause: Why it is not ready.
    """

    member: M
    before: MemberState
    after: MemberState
    cause: Exception | None


class Members(Generic[M]):
    """The members and the known state of each.

    Events come in through methods: a member is added, has answered, has failed, is lost. Decisions come out: which
    members are ready, and which are `due` to be asked. A `Wait` decides for a waiting caller. The cost of an event does
    not grow with the number of members. Not thread-safe.

    Args:
      connect_seconds: How long a caller waits for the first ready member.
      clock: Returns the time in seconds.
    """

    def __init__(self, connect_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._connect_seconds = connect_seconds
        self._members: tuple[M, ...] = ()
        self._numbers: Counter[MemberState] = Counter()
        # Which member to ask when; an entry that no longer agrees with its member does not count.
        self._agenda: list[tuple[float, int, M]] = []
        self._entries = itertools.count()
        self._at_rest: list[M] = []
        self._changes: list[Change[M]] = []
        self._strained: dict[M, None] = {}
        self._gave_up: float | None = None
        self._closed = False

    @property
    def members(self) -> tuple[M, ...]:
        """All members, in the order in which they were added."""
        return self._members

    @property
    def ready(self) -> list[M]:
        """The members that are ready."""
        return [member for member in self._members if member.is_ready]

    @property
    def number_ready(self) -> int:
        """How many members are ready."""
        return self._numbers[MemberState.READY]

    @property
    def states(self) -> set[MemberState]:
        """The states that at least one member is in."""
        return {state for state, number in self._numbers.items() if number}

    @property
    def closed(self) -> bool:
        """Whether it was closed, and returns no more members."""
        return self._closed

    # Events of members.

    def add(self, member: M) -> None:
        """Adds a member that has not been heard from yet."""
        self._members = (*self._members, member)
        self._numbers[member.state] += 1
        self._ask_soon(member)

    def remove(self, member: M) -> None:
        """Removes a member. Anything heard from it from now on does not count."""
        self._members = tuple(other for other in self._members if other is not member)
        self._strained.pop(member, None)
        self._rest(member)
        self._becomes(member, MemberState.REMOVED, None)
        self._numbers[MemberState.REMOVED] = 0

    def answered(self, member: M) -> None:
        """Records that a member has answered, and so is ready."""
        if member.state in (MemberState.REMOVED, MemberState.GONE) or self._closed:
            return
        self._gave_up = None  # also if no caller waits while there are members, as with a coordinator
        self._rest(member)
        self._becomes(member, MemberState.READY, None)

    def failed(self, member: M, error: Exception) -> None:
        """Records that a member that was being asked has not answered; it is asked again, after growing pauses."""
        if not member.asking:
            return
        member.asking = False
        self._ask_at(member, self.clock() + member.pause)
        member.pause = min(2 * member.pause, LONGEST_PAUSE)
        self._becomes(member, _state_after(error), error)

    def lost(self, member: M, error: Exception, *, for_good: bool = False) -> None:
        """Records that a member was found or reported to be away.

        Args:
          member: The member.
          error: Why.
          for_good: Whether it will never come back.
        """
        if member.state is MemberState.REMOVED or self._closed:
            return
        if isinstance(error, DeadlineExceededError):
            self._strain(member)
        if for_good or member.supervised:
            self._rest(member)
        elif not member.asking and member.ask_at is None:
            self._ask_soon(member)
        self._becomes(member, MemberState.GONE if for_good else _state_after(error), error)

    def drains(self, member: M) -> None:
        """Records that a ready member reports that it is about to stop."""
        if member.is_ready:
            self._becomes(member, MemberState.DRAINING, None)

    def returned(self, member: M) -> None:
        """Records that a member that was away was found or reported to be back; it is asked at once."""
        if member.state not in _NOT_AWAY and not self._closed:
            self._rest(member)
            self._ask_soon(member)
            self._becomes(member, MemberState.BACK, member.cause)

    def full(self, member: M, refusal: ResourceLimitError) -> bool:
        """Records that a member has no room for another session; returns whether that is news."""
        is_news = member.refusal is None
        self._strain(member)
        # Not the error itself: it is raised, and its frames would be kept while the member is full.
        member.refusal, member.refused_at = ResourceLimitError(str(refusal)), self.clock()
        return is_news

    def has_room(self, member: M) -> None:
        """Records that a member has room for a session again."""
        member.refusal = None

    def close(self) -> None:
        """Ends all asking and waiting. Idempotent."""
        self._closed = True
        self._strained.clear()
        for member in self._members:
            self._rest(member)

    # Decisions.

    def due(self) -> list[M]:
        """Returns the members to ask now whether they are reachable; they count as being asked from now on."""
        due: list[M] = []
        while self.seconds_to_due() == 0:
            _, _, member = heapq.heappop(self._agenda)
            member.asking, member.ask_at = True, None
            due.append(member)
        return due

    def take_at_rest(self) -> list[M]:
        """Returns the members that have stopped needing to be asked since the last call of this method."""
        members, self._at_rest = self._at_rest, []
        return members

    def seconds_to_due(self) -> float | None:
        """Returns the number of seconds until a member is due to be asked; `None` if none will be."""
        while self._agenda:
            at, _, member = self._agenda[0]
            if member.ask_at == at:
                return max(0.0, at - self.clock())
            heapq.heappop(self._agenda)
        return None

    def take_changes(self) -> list[Change[M]]:
        """Returns the changes since the last call of this method, in order."""
        changes, self._changes = self._changes, []
        return changes

    def is_full(self, member: M) -> bool:
        """Returns whether a member refused a session so recently that it should not be asked for room yet."""
        return member.refusal is not None and self.clock() - member.refused_at < FULL_SECONDS

    def patience(self) -> float:
        """Returns how long a caller should wait from now on for the first ready member, in seconds.

        After a failed wait, the next waits are short until a member is ready: members are asked all the time. But some
        connections dial less often the longer their peer was away; they get the time that has passed since then.
        """
        if self._gave_up is None:
            return self._connect_seconds
        can_look = all(member.can_look for member in self._members)
        again = AGAIN_SECONDS if can_look else max(AGAIN_SECONDS, self.clock() - self._gave_up)
        return min(self._connect_seconds, again)

    def waited(self, *, in_vain: bool) -> None:
        """Records that a caller has waited for members; see `patience`."""
        self._gave_up = self.clock() if in_vain else None

    def gap(self) -> float:
        """Returns how many seconds a caller should wait after the previous caller before it uses the ready members.

        A member that is silent, or reports that it is full, is overloaded, and callers that retry independently do
        not reduce its load: whatever stalled 5,000 calls stalls them again. So all callers wait for each other, twice
        as long each time that it happens again, and half as long after a while without an overload.
        """
        if not self._strained:
            return 0.0
        now, gap = self.clock(), 0.0
        for member in list(self._strained):
            left = self._gap_of(member, now)
            if left < _FIRST_GAP / 2:
                del self._strained[member]
            elif member.is_ready:
                gap = max(gap, left)
        return gap

    def _gap_of(self, member: M, now: float) -> float:
        return member.gap * 0.5 ** ((now - member.strained_at) / _HALF_SECONDS)

    def _strain(self, member: M) -> None:
        """Records that a member is overloaded; counts once even if many callers notice at the same time."""
        now = self.clock()
        if now - member.strained_at >= _STRAIN_SECONDS:
            member.gap = min(max(_FIRST_GAP, 2 * self._gap_of(member, now)), _LONGEST_GAP)
            member.strained_at = now
            self._strained[member] = None

    def _ask_soon(self, member: M) -> None:
        member.pause = FIRST_PAUSE
        if not self._closed:
            self._ask_at(member, self.clock())

    def _ask_at(self, member: M, at: float) -> None:
        member.ask_at = at
        heapq.heappush(self._agenda, (at, next(self._entries), member))

    def _rest(self, member: M) -> None:
        """Stops asking a member; an answer that still arrives does not count."""
        if member.asking:
            self._at_rest.append(member)
        member.asking, member.ask_at = False, None

    def _becomes(self, member: M, state: MemberState, cause: Exception | None) -> None:
        before, member.state, member.cause = member.state, state, cause
        if before is not state:
            self._numbers[before] -= 1
            self._numbers[state] += 1
            self._changes.append(Change(member, before, state, cause))

    def __repr__(self) -> str:
        return f"<Members {', '.join(map(repr, self._members))}>"


def _state_after(error: Exception) -> MemberState:
    return MemberState.AWAY if isinstance(error, RetryableError) else MemberState.WRONG
