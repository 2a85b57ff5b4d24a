"""Decides which members are ready, which are asked again and when: a state machine without sockets, tasks or logs."""

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
# How long a member that had no room is not asked again, as long as others have some.
FULL_SECONDS = 5.0
# How long callers wait for each other after a member had too much to do, at first and at most; how long it takes until
# that is half as long again, and until the same member may make it twice as long.
_FIRST_GAP, _LONGEST_GAP = 0.01, 1.0
_HALF_SECONDS = 15.0
_STRAIN_SECONDS = 5.0
# How long each wait for members is that follows one in vain.
AGAIN_SECONDS = 0.25


@attrs.frozen
class Change(Generic[M]):
    """A member has come into another state.

    Attributes:
      member: The member.
      before: What was known of it until then.
      after: What is known of it from then on.
      cause: Why it is not ready.
    """

    member: M
    before: MemberState
    after: MemberState
    cause: Exception | None


class Members(Generic[M]):
    """The members there are, and what is known of each.

    Events go in by methods: a member is added, has answered, has failed, is lost. Decisions come out: which members are
    ready, which are `due` to be asked. A `Wait` decides for a caller that waits. What an event costs does not grow with
    the number of members. Not safe for threads.

    Args:
      connect_seconds: How long a caller waits for the first member that is ready.
      clock: Returns the time in seconds.
    """

    def __init__(self, connect_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._connect_seconds = connect_seconds
        self._members: tuple[M, ...] = ()
        self._numbers: Counter[MemberState] = Counter()
        # When to ask whom; what does not agree with the member any more does not count.
        self._agenda: list[tuple[float, int, M]] = []
        self._entries = itertools.count()
        self._at_rest: list[M] = []
        self._changes: list[Change[M]] = []
        self._strained: dict[M, None] = {}
        self._gave_up: float | None = None
        self._closed = False

    @property
    def members(self) -> tuple[M, ...]:
        """All of them, in the order in which they were added."""
        return self._members

    @property
    def ready(self) -> list[M]:
        """Those that are ready."""
        return [member for member in self._members if member.is_ready]

    @property
    def number_ready(self) -> int:
        """How many are ready."""
        return self._numbers[MemberState.READY]

    @property
    def states(self) -> set[MemberState]:
        """The states in which there are any."""
        return {state for state, number in self._numbers.items() if number}

    @property
    def closed(self) -> bool:
        """Whether it was closed, and gives no members any more."""
        return self._closed

    # What happens to members.

    def add(self, member: M) -> None:
        """There is one more member; nothing has been heard of it."""
        self._members = (*self._members, member)
        self._numbers[member.state] += 1
        self._ask_soon(member)

    def remove(self, member: M) -> None:
        """A member is not used any more. What is heard of it from here on does not count."""
        self._members = tuple(other for other in self._members if other is not member)
        self._strained.pop(member, None)
        self._rest(member)
        self._becomes(member, MemberState.REMOVED, None)
        self._numbers[MemberState.REMOVED] = 0

    def answered(self, member: M) -> None:
        """A member is there."""
        if member.state in (MemberState.REMOVED, MemberState.GONE) or self._closed:
            return
        self._gave_up = None  # also where nobody waits for members as long as there are some, as a coordinator
        self._rest(member)
        self._becomes(member, MemberState.READY, None)

    def failed(self, member: M, error: Exception) -> None:
        """A member that was being asked has not answered; it is asked again, after pauses that grow."""
        if not member.asking:
            return
        member.asking = False
        self._ask_at(member, self.clock() + member.pause)
        member.pause = min(2 * member.pause, LONGEST_PAUSE)
        self._becomes(member, _state_after(error), error)

    def lost(self, member: M, error: Exception, *, for_good: bool = False) -> None:
        """A member was found, or is said, to be away.

        Args:
          member: The member.
          error: Why.
          for_good: Whether it does not come back.
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

    def returned(self, member: M) -> None:
        """A member that was away was found, or is said, to be there again; it is asked at once."""
        if member.state not in (MemberState.READY, MemberState.BACK, MemberState.REMOVED) and not self._closed:
            self._rest(member)
            self._ask_soon(member)
            self._becomes(member, MemberState.BACK, member.cause)

    def full(self, member: M, refusal: ResourceLimitError) -> bool:
        """A member has no room for one more session; returns whether that is news."""
        is_news = member.refusal is None
        self._strain(member)
        # Not that error itself: it is raised, and its frames would be kept as long as the member is full.
        member.refusal, member.refused_at = ResourceLimitError(str(refusal)), self.clock()
        return is_news

    def has_room(self, member: M) -> None:
        """A member has made room for a session."""
        member.refusal = None

    def close(self) -> None:
        """Ends all asking and waiting. Idempotent."""
        self._closed = True
        self._strained.clear()
        for member in self._members:
            self._rest(member)

    # What is to be done.

    def due(self) -> list[M]:
        """Returns the members that are to be asked now if they are there; they count as being asked from here on."""
        due: list[M] = []
        while self.seconds_to_due() == 0:
            _, _, member = heapq.heappop(self._agenda)
            member.asking, member.ask_at = True, None
            due.append(member)
        return due

    def take_at_rest(self) -> list[M]:
        """Returns those that were being asked and need not be any more, since the last call of this method."""
        members, self._at_rest = self._at_rest, []
        return members

    def seconds_to_due(self) -> float | None:
        """Returns how long it is until a member is to be asked; `None` if none is."""
        while self._agenda:
            at, _, member = self._agenda[0]
            if member.ask_at == at:
                return max(0.0, at - self.clock())
            heapq.heappop(self._agenda)
        return None

    def take_changes(self) -> list[Change[M]]:
        """Returns what has changed since the last call of this method, in order."""
        changes, self._changes = self._changes, []
        return changes

    def is_full(self, member: M) -> bool:
        """Returns whether a member had no room so short a time ago that it is not to be asked for some."""
        return member.refusal is not None and self.clock() - member.refused_at < FULL_SECONDS

    def patience(self) -> float:
        """Returns how long a caller is to wait from now on for the first member that is ready, in seconds.

        After a wait in vain the next ones are short until a member is there: they are asked all the time. But some
        connections dial more seldom the longer their peer was away, and get the time since then.
        """
        if self._gave_up is None:
            return self._connect_seconds
        can_look = all(member.can_look for member in self._members)
        again = AGAIN_SECONDS if can_look else max(AGAIN_SECONDS, self.clock() - self._gave_up)
        return min(self._connect_seconds, again)

    def waited(self, *, in_vain: bool) -> None:
        """A caller has waited for members; see `patience`."""
        self._gave_up = self.clock() if in_vain else None

    def gap(self) -> float:
        """Returns how long a caller is to wait after the one before it until it uses the members that are ready.

        A member that is silent, or says that it is full, has too much to do, and callers that try again each by itself
        give it no less: what has brought 5,000 calls to a stop brings them to a stop again. So all callers wait for
        each other, twice as long each time that it happens again, and half as long after a while without.
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
        """A member has too much to do; that many callers find that out at the same time counts once."""
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
        """Makes an end of asking a member; what it still answers does not count."""
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
