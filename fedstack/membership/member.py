"""Defines what is known of one peer that may be lost."""

import enum
import math
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from fedstack.errors import FedstackError, ResourceLimitError
from fedstack.transport.peers.service_stub import ServiceStub

_S = TypeVar("_S", bound=ServiceStub)


class MemberState(enum.Enum):
    """What is known of a member. It is in exactly one of these states; values are words for people."""

    NEW = "not asked yet"
    """Nothing has been heard of it."""
    READY = "ready"
    AWAY = "away"
    """It was lost or does not answer, and may be back at any time."""
    BACK = "back"
    """It was away and was found, or said, to be there again. It has not answered since."""
    WRONG = "of no use"
    """What is wrong with it does not become right by waiting, such as a token that it refuses."""
    GONE = "gone"
    """It has ended for good."""
    REMOVED = "removed"


HOPELESS = frozenset({MemberState.WRONG, MemberState.GONE, MemberState.REMOVED})
"""In these states waiting does not help."""


@attrs.define(eq=False, repr=False)
class Member(Generic[_S]):
    """One peer that is dialled. Only its `Members` change its state, on the transport's loop; any thread may read it.

    Subclasses know what to ask it, and keep what it says of itself.

    Attributes:
      stub: Calls it. `Members` use its address only.
      supervised: Whether something else says when it is lost and when it is back, so that it is not searched for.
      can_look: Whether it can be looked for at any time; if not, only waiting shows that it is back.
      state: What is known of it.
      cause: Why it is not ready, where that is known.
      asking: Whether it is being asked now if it is there.
      ask_at: When to ask it next; `None` if it is being asked or need not be.
      pause: How long to wait after the next attempt in vain, in seconds.
      refusal: What it said when it had no room for a session; `None` if it has, as far as is known.
      refused_at: When it said so.
      gap: How long callers waited for each other when it last had too much to do, in seconds; see `Members.gap`.
      strained_at: When that was.
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
        """Asks the peer, which can be reached, whether it is of use; keeps what it says of itself.

        Raises:
          FedstackError: If it is not.
        """

    @property
    def address(self) -> str:
        """Its address."""
        return self.stub.address

    @property
    def is_ready(self) -> bool:
        """Whether it is known to be there."""
        return self.state is MemberState.READY

    def cause_after(self, seconds: float) -> str:
        """Returns why it is not there, in a line, for a caller that has waited that long."""
        return f"no answer within {seconds:g} s" if self.cause is None else self.line_of(self.cause)

    def line_of(self, error: Exception) -> str:
        """Returns what an error of this member says, in a line."""
        known = error.causes.get(self.address) if isinstance(error, FedstackError) else None
        found = str(error).removeprefix(f"The call to {self.address} failed with ")
        return known or found.partition("\n")[0]

    def __repr__(self) -> str:
        cause = "" if self.cause is None else f": {self.cause}"
        return f"<{type(self).__name__} {self.address} {self.state.value}{cause}>"


AnyMember: TypeAlias = "Member[Any]"
M = TypeVar("M", bound=AnyMember)
