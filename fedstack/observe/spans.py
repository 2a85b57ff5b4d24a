"""Where in a call work stands: the ids that its events carry, which travel with it to threads, tasks and workers."""

import os
import random
import re
from typing import Any

import attrs

_ID = re.compile(r"[0-9a-f]{16}")
# Not the generator that users seed, and another one in a forked child.
_random = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def new_id() -> str:
    """Returns the id of a span."""
    return f"{_random.getrandbits(64):016x}"


def is_id(text: str) -> bool:
    """Returns whether a text, of a peer for example, is the id of a span."""
    return _ID.fullmatch(text) is not None


@attrs.frozen
class Span:
    """A call, or a phase in one.

    Attributes:
      trace: The id of the outermost call.
      call: The id of the call.
      id: Its own.
    """

    trace: str = ""
    call: str = ""
    id: str = ""

    @property
    def ids(self) -> dict[str, Any]:
        """The ids of an event that happens in it, as arguments of the event's class."""
        return {"trace": self.trace, "call": self.call, "parent": self.id}

    def new_call(self) -> "Span":
        """Returns the span of a call that is made in this one."""
        call = new_id()
        return Span(self.trace or call, call, call)

    def new_phase(self) -> "Span":
        """Returns the span of a phase that begins in this one."""
        return Span(self.trace, self.call, new_id())


NO_SPAN = Span()
