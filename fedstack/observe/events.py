"""Defines the events that can be observed: plain data, numbers and names, never values or errors themselves.

Events of one call have its id in `call`. Calls, and phases within them, are *spans*: a started and an ended event with
the same id. Events within a span have that id in `parent`. `trace` is the id of the outermost call, which differs from
`call` where a leaf function has called a computation. Ids are 16 random hexadecimal digits. The ids of a call reach the
threads, tasks and workers that do its work (`Span`), so spans of several processes join. The ids are empty outside of
any call, and for a client without observers.
"""

import os
import random
import re
import time
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened.

    Attributes:
      time: When, in seconds since 1970.
      trace: The id of the outermost call.
      call: The id of the call that it belongs to.
      parent: The id of the span in which it happened.
    """

    time: float = attrs.field(factory=time.time)
    trace: str = ""
    call: str = ""
    parent: str = ""


@attrs.frozen(kw_only=True)
class CallStarted(Event):
    """A computation was called in a context. `call` is the id of the span that begins.

    Attributes:
      computation: Its name, as far as it has one.
    """

    computation: str


@attrs.frozen(kw_only=True)
class CallEnded(Event):
    """A call has returned or raised.

    Attributes:
      computation: The name of the computation.
      clients: The number of clients, as far as the argument says.
      seconds: How long it took.
      error: The name of the class of what it raised; empty if it returned.
    """

    computation: str
    clients: int
    seconds: float
    error: str = ""


@attrs.frozen(kw_only=True)
class CallRetried(Event):
    """An attempt at a call has failed, and the next one follows.

    Attributes:
      attempt: The number of the attempt that failed; the first is 1.
      pause: In how many seconds the next one begins.
      error: The name of the class of what it raised.
    """

    attempt: int
    pause: float
    error: str


@attrs.frozen(kw_only=True)
class PhaseEvent(Event):
    """A client phase, or the part of one at a worker.

    The calling process has a phase for all clients, and within it a part for each worker. The phase that runs at a
    worker is within its part.

    Attributes:
      phase: The id of its span.
      functions: The names of the functions that clients run.
      first_client: The first of its clients.
      clients: How many there are.
      worker: The address of the worker; empty if it runs here.
    """

    phase: str
    functions: str
    first_client: int
    clients: int
    worker: str = ""


@attrs.frozen(kw_only=True)
class PhaseStarted(PhaseEvent):
    """A phase, or a part of one, begins."""


@attrs.frozen(kw_only=True)
class PhaseEnded(PhaseEvent):
    """A phase, or a part of one, has ended.

    Attributes:
      seconds: How long it took.
      bytes_sent: The bytes sent to the worker; 0 if it ran here.
      bytes_received: The bytes received from it.
      error: The name of the class of what it raised; empty if it succeeded.
    """

    seconds: float
    bytes_sent: int = 0
    bytes_received: int = 0
    error: str = ""


@attrs.frozen(kw_only=True)
class ClientsChanged(Event):
    """Some clients of a call have begun or ended: a block of them at a time.

    Numbers are changes: they add up to those of an attempt, since each `CallRetried` begins anew. Workers report about
    once a second.

    Attributes:
      expected: The number of clients of a phase that has begun.
      started: How many clients have begun.
      done: How many of those are done.
      failed: How many of those have failed.
      given_up: How many of those ended otherwise: another client failed, or their worker was lost. Some of them may be
        done without having been reported.
    """

    expected: int = 0
    started: int = 0
    done: int = 0
    failed: int = 0
    given_up: int = 0


@attrs.frozen(kw_only=True)
class Folded(Event):
    """The aggregations of a phase have their results, from contributions that were folded while clients ran.

    Attributes:
      what: The aggregations, such as `federated_sum`.
      clients: The number of clients.
      seconds: How long it took to make the results from the folded contributions.
    """

    what: str
    clients: int
    seconds: float


@attrs.frozen(kw_only=True)
class WorkerReady(Event):
    """A worker is ready, for the first time or again.

    Attributes:
      worker: Its address.
    """

    worker: str


@attrs.frozen(kw_only=True)
class WorkerLost(Event):
    """A worker that was ready no longer is.

    Attributes:
      worker: Its address.
      error: The name of the class of the cause.
      reason: A short description of the cause.
    """

    worker: str
    error: str
    reason: str


@attrs.frozen(kw_only=True)
class SessionOpened(Event):
    """A client has opened a session at this server.

    Attributes:
      session: The beginning of its id.
      clients: The number of clients that the session is for.
    """

    session: str
    clients: int


@attrs.frozen(kw_only=True)
class SessionClosed(Event):
    """A session at this server has ended.

    Attributes:
      session: The beginning of its id.
      reason: Why.
    """

    session: str
    reason: str


@attrs.frozen(kw_only=True)
class LeafLoaded(Event):
    """A leaf function was loaded, for the first time in this process or session.

    Attributes:
      name: Its name.
      carrier: The kind of message that carried it, such as `fedstack.v1.PythonReference`.
      seconds: How long it took.
    """

    name: str
    carrier: str
    seconds: float


@attrs.frozen(kw_only=True)
class WorkCancelled(Event):
    """Work on a thread was cancelled, but continues: a Python function cannot be stopped."""


@attrs.frozen(kw_only=True)
class LoopStalled(Event):
    """The event loop of a server was blocked, and all its clients waited.

    Attributes:
      seconds: For how long.
    """

    seconds: float


@attrs.frozen(kw_only=True)
class RpcEnded(Event):
    """A server has answered a call of a client.

    Attributes:
      method: The method, such as `fedstack.v1.ExecutorExtensions/RunPhase`; `(other)` for an unknown one.
      code: The name of the status, such as `OK`.
      seconds: How long it took.
      bytes_received: The bytes of the messages received.
      bytes_sent: The bytes of the messages sent.
    """

    method: str
    code: str
    seconds: float
    bytes_received: int = 0
    bytes_sent: int = 0


_ID = re.compile(r"[0-9a-f]{16}")
# Independent of the generator that users seed, and reseeded in a forked child.
_random = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def new_id() -> str:
    """Returns the id of a span."""
    return f"{_random.getrandbits(64):016x}"


def is_id(text: str) -> bool:
    """Returns whether a text, for example from a peer, is the id of a span."""
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
        """The ids of an event within this span, as arguments of the event's class."""
        return {"trace": self.trace, "call": self.call, "parent": self.id}

    def new_call(self) -> "Span":
        """Returns the span of a new call within this one."""
        call = new_id()
        return Span(self.trace or call, call, call)

    def new_phase(self) -> "Span":
        """Returns the span of a new phase within this one."""
        return Span(self.trace, self.call, new_id())


NO_SPAN = Span()
