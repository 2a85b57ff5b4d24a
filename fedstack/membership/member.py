"""Defines the known state of one peer that may be lost."""

import enum
import math
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from fedstack.errors import FedstackError, ResourceLimitError
from fedstack.transport.peers.service_stub import ServiceStub

_S = TypeVar("_S", bound=ServiceStub)


class MemberState(enum.Enum):
    """The known state of a member. A member is in exactly one state; values are human-readable."""

    NEW = "not asked yet"
    """It has not been heard from yet."""
    READY = "ready"
    DRAINING = "draining"
    """It is about to stop: it completes its work, and takes no more."""
    AWAY = "away"
    """It was lost or does not answer, and may return at any time."""
    BACK = "back"
    """It was away and was found or reported to be back, but has not answered since."""
    WRONG = "of no use"
    """It has a problem that waiting does not solve, such as a token that it refuses."""
    GONE = "gone"
    """It has ended permanently."""
    REMOVED = "removed"


HOPELESS = frozenset({MemberState.WRONG, MemberState.GONE, MemberState.REMOVED})
"""States in which waiting does not help."""


@attrs.define(eq=False, repr=False)
class Member(Generic[_S]):
    """A peer that is dialled. Only its `Members` change its state, on the transport's loop; any thread may read it.

    Subclasses define the question to ask it, and keep what it reports about itself.

    Attributes:
      stub: Calls it. `Members` use its address only.
      supervised: Whether something else reports when it is lost and when it is back, so that no search is needed.
      can_look: Whether it can be looked for at any time; if not, only waiting shows that it is back.
      state: Its known state.
      cause: Why it is not ready, if known.
      asking: Whether it is currently being asked if it is reachable.
      ask_at: When to ask it next; `None` if it is being asked or does not need to be.
      pause: How long to wait after the next failed attempt, in seconds.
      refusal: Its answer when it had no room for a session; `None` if it has room, as far as is known.
      refused_at: When it refused.
      gap: How long callers waited for each other when it was last overloaded, in seconds; see `Members.gap`.
      strained_at: When it was last overloaded.
    """

    stub: _S
    supervised: bool = False
    can_look: bool = True
    state: MemberState = MemberState.NEW
    cause: Exception | None = None
    asking: bool = False
    ask_at: float | None = None
    pause: float = 0.0
    refusal: ResourceLimitError | None = None
    refused_at: float = 0.0
    gap: float = 0.0
    strained_at: float = -math.inf

    async def ask(self) -> None:
        """Asks the peer, which can be reached, whether it can be used; keeps what it reports about itself.

        Raises:
          FedstackError: If it cannot be used.
        """

    @property
    def address(self) -> str:
        """Its address."""
        return self.stub.address

    @property
    def is_ready(self) -> bool:
        """Whether it is known to be ready."""
        return self.state is MemberState.READY

    def cause_after(self, seconds: float) -> str:
        """Returns a line that says why it is not ready, for a caller that has waited that long."""
        return f"no answer within {seconds:g} s" if self.cause is None else self.line_of(self.cause)

    def line_of(self, error: Exception) -> str:
        """Returns the message of one of this member's errors as a single line."""
        known = error.causes.get(self.address) if isinstance(error, FedstackError) else None
        found = str(error).removeprefix(f"The call to {self.address} failed with ")
        return known or found.partition("\n")[0]

    def __repr__(self) -> str:
        cause = "" if self.cause is None else f": {self.cause}"
        return f"<{type(self).__name__} {self.address} {self.state.value}{cause}>"


AnyMember: TypeAlias = "Member[Any]"
M = TypeVar("M", bound=AnyMember)
