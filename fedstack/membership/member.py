"""Defines a member, which is a peer that may be lost, and its known state."""

import enum
import math
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from fedstack.errors import FedstackError, ResourceLimitError
from fedstack.transport.peers.service_stub import ServiceStub

_S = TypeVar("_S", bound=ServiceStub)


class MemberState(enum.Enum):
    """The known state of a member. A member is always in exactly one state. The values are human-readable."""

    NEW = "not contacted yet"
    """The member has not answered or failed yet."""
    READY = "ready"
    DRAINING = "draining"
    """The member is about to stop: it completes its current work and accepts no new work."""
    AWAY = "away"
    """The member was lost or does not answer, and may return at any time."""
    BACK = "back"
    """The member was away and was found or reported to be back, but has not answered since."""
    WRONG = "unusable"
    """The member has a problem that waiting does not solve; for example, it rejects the token."""
    GONE = "gone"
    """The member has ended permanently."""
    REMOVED = "removed"


HOPELESS = frozenset({MemberState.WRONG, MemberState.GONE, MemberState.REMOVED})
"""The states in which waiting for the member does not help."""


@attrs.define(eq=False, repr=False)
class Member(Generic[_S]):
    """A peer that is dialed. Only its `Members` change its state, on the transport's loop; any thread may read it.

    Subclasses define how to query the peer, and store its answer.

    Attributes:
      stub: The stub that calls the peer. `Members` use only its address.
      supervised: Whether another component reports when the peer is lost and when it is back, so that no checks are
        needed.
      can_look: Whether the peer can be checked at any time. If not, only waiting shows that it is back.
      state: The known state of the peer.
      cause: The reason why the peer is not ready, if known.
      asking: Whether the peer is currently being queried.
      ask_at: The time of the next query; `None` if a query is running or none is needed.
      pause: The pause after the next failed query, in seconds.
      refusal: The error with which the peer last refused a session for lack of room; `None` if it is assumed to have
        room.
      refused_at: The time of the refusal.
      gap: The time between callers when the peer was last overloaded, in seconds; see `Members.gap`.
      strained_at: The time when the peer was last overloaded.
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
        """Queries the peer, which must be reachable, for its capabilities, and stores its answer.

        Raises:
          FedstackError: If the peer cannot be used.
        """

    @property
    def address(self) -> str:
        """The address of the peer."""
        return self.stub.address

    @property
    def is_ready(self) -> bool:
        """Whether the peer is known to be ready."""
        return self.state is MemberState.READY

    def cause_after(self, seconds: float) -> str:
        """Returns the reason why the peer is not ready as a single line, for a caller that has waited `seconds`."""
        return f"no answer within {seconds:g} s" if self.cause is None else self.line_of(self.cause)

    def line_of(self, error: Exception) -> str:
        """Returns the message of an error of this member as a single line."""
        known = error.causes.get(self.address) if isinstance(error, FedstackError) else None
        found = str(error).removeprefix(f"The call to {self.address} failed with ")
        return known or found.partition("\n")[0]

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        cause = "" if self.cause is None else f": {self.cause}"
        return f"<{type(self).__name__} {self.address} {self.state.value}{cause}>"


AnyMember: TypeAlias = "Member[Any]"
M = TypeVar("M", bound=AnyMember)
