"""A state machine that decides which members are ready, which to query again, and when.

It has no sockets, tasks or logs.
"""

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
# For how long a member that had no room for a session is skipped while other members have room.
FULL_SECONDS = 5.0
# The initial and the maximum time between callers after a member was overloaded, the time in which it is halved, and
# the minimum time until the same member may double it again.
_FIRST_GAP, _LONGEST_GAP = 0.01, 1.0
_HALF_SECONDS = 15.0
_STRAIN_SECONDS = 5.0
_NOT_AWAY = (MemberState.READY, MemberState.DRAINING, MemberState.BACK, MemberState.REMOVED)
# The time limit of a wait for members that follows a failed wait.
AGAIN_SECONDS = 0.25


@attrs.frozen
class Change(Generic[M]):
    """A change of a member's state.

    Attributes:
      member: The member.
      before: The state of the member before the change.
      after: The state of the member after the change.
      cause: The reason why the member is not ready, if known.
    """

    member: M
    before: MemberState
    after: MemberState
    cause: Exception | None


class Members(Generic[M]):
    """The members and the known state of each.

    Some methods record events: a member was added, has answered, has failed or was lost. Others, and the properties,
    return decisions: which members are ready, and which are `due` for a query. A `Wait` decides on behalf of a waiting
    caller. The cost of an event does not depend on the number of members. Not thread-safe.

    Args:
      connect_seconds: How long a caller waits for the first ready member, in seconds.
      clock: Returns the time in seconds.
    """

    def __init__(self, connect_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._connect_seconds = connect_seconds
        self._members: tuple[M, ...] = ()
        self._numbers: Counter[MemberState] = Counter()
        # The times of the next queries. An entry whose time differs from its member's `ask_at` is outdated and ignored.
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
        """The number of ready members."""
        return self._numbers[MemberState.READY]

    @property
    def states(self) -> set[MemberState]:
        """The states that at least one member is in."""
        return {state for state, number in self._numbers.items() if number}

    @property
    def is_strained(self) -> bool:
        """Whether a member may be overloaded, so that there may be a gap between callers."""
        return bool(self._strained)

    @property
    def closed(self) -> bool:
        """Whether `close` was called, after which no caller receives members any more."""
        return self._closed

    # Events of members.

    def add(self, member: M) -> None:
        """Adds a member, which becomes due for its first query."""
        self._members = (*self._members, member)
        self._numbers[member.state] += 1
        self._ask_soon(member)

    def remove(self, member: M) -> None:
        """Removes a member. Later events of this member are ignored."""
        self._members = tuple(other for other in self._members if other is not member)
        self._strained.pop(member, None)
        self._rest(member)
        self._becomes(member, MemberState.REMOVED, None)
        self._numbers[MemberState.REMOVED] = 0

    def answered(self, member: M) -> None:
        """Records that a member has answered and is therefore ready."""
        if member.state in (MemberState.REMOVED, MemberState.GONE) or self._closed:
            return
        self._gave_up = None  # here too, because a coordinator has members but no waiting callers
        self._rest(member)
        self._becomes(member, MemberState.READY, None)

    def failed(self, member: M, error: Exception) -> None:
        """Records that the query of a member has failed. The member is queried again, after increasing pauses."""
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
          error: The reason.
          for_good: Whether the member will never come back.
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
        """Records that a ready member has reported that it is about to stop."""
        if member.is_ready:
            self._becomes(member, MemberState.DRAINING, None)

    def returned(self, member: M) -> None:
        """Records that a member that was away was found or reported to be back. The member is queried at once."""
        if member.state not in _NOT_AWAY and not self._closed:
            self._rest(member)
            self._ask_soon(member)
            self._becomes(member, MemberState.BACK, member.cause)

    def full(self, member: M, refusal: ResourceLimitError) -> bool:
        """Records that a member has no room for another session; returns whether the refusal is new."""
        is_news = member.refusal is None
        self._strain(member)
        # A copy of the error: the original is raised, and storing it would keep its traceback's frames alive.
        member.refusal, member.refused_at = ResourceLimitError(str(refusal)), self.clock()
        return is_news

    def has_room(self, member: M) -> None:
        """Records that a member has room for a session again."""
        member.refusal = None

    def close(self) -> None:
        """Ends all queries, and all waits of callers. Idempotent."""
        self._closed = True
        self._strained.clear()
        for member in self._members:
            self._rest(member)

    # Decisions.

    def due(self) -> list[M]:
        """Returns the members to query now, and marks them as being queried."""
        due: list[M] = []
        while self.seconds_to_due() == 0:
            _, _, member = heapq.heappop(self._agenda)
            member.asking, member.ask_at = True, None
            due.append(member)
        return due

    def take_at_rest(self) -> list[M]:
        """Returns the members whose running queries have become unnecessary since the last call of this method."""
        members, self._at_rest = self._at_rest, []
        return members

    def seconds_to_due(self) -> float | None:
        """Returns the number of seconds until a member is due for a query; `None` if no query is scheduled."""
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
        """Returns whether a member refused a session so recently that another attempt should wait."""
        return member.refusal is not None and self.clock() - member.refused_at < FULL_SECONDS

    def patience(self) -> float:
        """Returns how long a caller that starts to wait now should wait for the first ready member, in seconds.

        After a failed wait, the next waits are short until a member is ready, because members are queried all the time.
        However, some connections dial less often the longer their peer was away. With such members, a wait may last as
        long as the time since the failed wait.
        """
        if self._gave_up is None:
            return self._connect_seconds
        can_look = all(member.can_look for member in self._members)
        again = AGAIN_SECONDS if can_look else max(AGAIN_SECONDS, self.clock() - self._gave_up)
        return min(self._connect_seconds, again)

    def waited(self, *, in_vain: bool) -> None:
        """Records the end of a wait for members, and whether it failed; see `patience`."""
        self._gave_up = self.clock() if in_vain else None

    def gap(self) -> float:
        """Returns the minimum time between two callers that start to use the ready members, in seconds.

        A member that is silent, or reports that it is full, is overloaded. Callers that retry independently do not
        reduce its load: an overload that stalled 5,000 calls stalls them again. All callers are therefore spaced out
        in time. Each further overload doubles the gap, and a period without an overload halves it.
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
        """Records that a member is overloaded. Reports by many callers at the same time count as one overload."""
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
        """Stops querying a member. A late answer is ignored."""
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
