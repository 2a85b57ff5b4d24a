"""Defines the events that can be observed.

Events contain only numbers and names, never the values or the error objects of a computation.

Calls, and phases within calls, are *spans*. A span has a started event and an ended event with the same id. Three ids
connect events with spans:

* `call` is the id of the call that an event belongs to.
* `parent` is the id of the span in which an event occurred.
* `trace` is the id of the outermost call. It differs from `call` if a leaf function has called a computation.

An id consists of 16 random hexadecimal digits. The ids of a call are passed on to the threads, tasks and workers that
work for the call (`Span`), so spans of several processes can be joined. Ids are empty outside of calls. On a server,
they are also empty for calls from clients that have no observers.
"""

import os
import random
import re
import time
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Event:
    """The base class of all events.

    Attributes:
      time: The time of the event, in seconds since the Unix epoch.
      trace: The id of the outermost call.
      call: The id of the call that the event belongs to.
      parent: The id of the span in which the event occurred.
    """

    time: float = attrs.field(factory=time.time)
    trace: str = ""
    call: str = ""
    parent: str = ""


@attrs.frozen(kw_only=True)
class CallStarted(Event):
    """A computation was called in a context. `call` is the id of the new span.

    Attributes:
      computation: The name of the computation; empty if it has no name.
    """

    computation: str


@attrs.frozen(kw_only=True)
class CallEnded(Event):
    """A call has returned, or has raised an error.

    Attributes:
      computation: The name of the computation; empty if it has no name.
      clients: The number of clients in the argument; 0 if the argument does not determine the number.
      seconds: The duration of the call in seconds.
      error: The class name of the error that the call raised; empty if the call returned.
    """

    computation: str
    clients: int
    seconds: float
    error: str = ""


@attrs.frozen(kw_only=True)
class CallRetried(Event):
    """An attempt to run a computation has failed and will be repeated.

    Attributes:
      attempt: The number of the failed attempt, counted from 1.
      pause: The time until the next attempt, in seconds.
      error: The class name of the error that the attempt raised.
    """

    attempt: int
    pause: float
    error: str


@attrs.frozen(kw_only=True)
class PhaseEvent(Event):
    """A client phase, or the part of a phase that one worker runs.

    In the calling process, a phase for all clients contains one part for each worker. The events of the worker's own
    process describe a phase within this part.

    Attributes:
      phase: The id of the span.
      functions: The names of the functions that clients run.
      first_client: The index of the first client.
      clients: The number of clients.
      worker: The address of the worker that runs the part; empty for a phase of this process.
    """

    phase: str
    functions: str
    first_client: int
    clients: int
    worker: str = ""


@attrs.frozen(kw_only=True)
class PhaseStarted(PhaseEvent):
    """A phase, or a part of a phase, has started."""


@attrs.frozen(kw_only=True)
class PhaseEnded(PhaseEvent):
    """A phase, or a part of a phase, has ended.

    Attributes:
      seconds: The duration in seconds.
      bytes_sent: The number of bytes sent to the worker; 0 for a phase of this process.
      bytes_received: The number of bytes received from the worker; 0 for a phase of this process.
      error: The class name of the error that was raised; empty if the phase succeeded.
    """

    seconds: float
    bytes_sent: int = 0
    bytes_received: int = 0
    error: str = ""


@attrs.frozen(kw_only=True)
class Folded(Event):
    """The aggregations of a phase have been completed.

    The contributions of clients are folded while the clients run, so only the last step is measured.

    Attributes:
      what: The names of the aggregations, such as `federated_sum`.
      clients: The number of clients.
      seconds: The time to compute the results from the folded contributions, in seconds.
    """

    what: str
    clients: int
    seconds: float


@attrs.frozen(kw_only=True)
class WorkerReady(Event):
    """A worker has become ready, for the first time or after it was lost.

    Attributes:
      worker: The address of the worker.
    """

    worker: str


@attrs.frozen(kw_only=True)
class WorkerLost(Event):
    """A ready worker has been lost.

    Attributes:
      worker: The address of the worker.
      error: The class name of the error that caused the loss.
      reason: A short description of the cause.
    """

    worker: str
    error: str
    reason: str


@attrs.frozen(kw_only=True)
class SessionOpened(Event):
    """A client has opened a session on this server.

    Attributes:
      session: The first characters of the session's id.
      clients: The number of clients in computations of the session.
    """

    session: str
    clients: int


@attrs.frozen(kw_only=True)
class SessionClosed(Event):
    """A session on this server has ended.

    Attributes:
      session: The first characters of the session's id.
      reason: Why the session ended.
    """

    session: str
    reason: str


@attrs.frozen(kw_only=True)
class LeafLoaded(Event):
    """A leaf function was loaded for the first time in this process or session.

    Attributes:
      name: The name of the function.
      carrier: The type of the message that contained the function, such as `fedstack.v1.PythonReference`.
      seconds: The loading time in seconds.
    """

    name: str
    carrier: str
    seconds: float


@attrs.frozen(kw_only=True)
class LeafCompiled(Event):
    """A leaf function was compiled when it was first called, or first called with arguments of a new size.

    Attributes:
      name: The name of the function.
      seconds: How long it took, in seconds.
      from_cache: Whether the compiled function was found in a cache on disk.
    """

    name: str
    seconds: float
    from_cache: bool


@attrs.frozen(kw_only=True)
class WorkCancelled(Event):
    """A function on a thread was cancelled but is still running, because Python functions cannot be interrupted."""


@attrs.frozen(kw_only=True)
class LoopStalled(Event):
    """The event loop of a server was blocked, so that all clients of the server had to wait.

    Attributes:
      seconds: How long the loop was blocked, in seconds.
    """

    seconds: float


@attrs.frozen(kw_only=True)
class RpcEnded(Event):
    """A server has completed an RPC.

    Attributes:
      method: The method, such as `fedstack.v1.ExecutorExtensions/RunPhase`; `(other)` for unknown methods.
      code: The name of the status code, such as `OK`.
      seconds: The duration in seconds.
      bytes_received: The number of bytes in received messages.
      bytes_sent: The number of bytes in sent messages.
    """

    method: str
    code: str
    seconds: float
    bytes_received: int = 0
    bytes_sent: int = 0


_ID = re.compile(r"[0-9a-f]{16}")
# A separate generator, so that users' seeds do not affect ids. It is reseeded in a forked child.
_random = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def new_id() -> str:
    """Returns a new span id."""
    return f"{_random.getrandbits(64):016x}"


def is_id(text: str) -> bool:
    """Returns whether a text, for example one from a peer, is a valid span id."""
    return _ID.fullmatch(text) is not None


@attrs.frozen
class Span:
    """A call, or a phase within a call.

    Attributes:
      trace: The id of the outermost call.
      call: The id of the call.
      id: The id of the span itself. For a call, this is the same as `call`.
    """

    trace: str = ""
    call: str = ""
    id: str = ""

    @property
    def ids(self) -> dict[str, Any]:
        """The ids for an event within this span, as keyword arguments for the event's class."""
        return {"trace": self.trace, "call": self.call, "parent": self.id}

    def new_call(self) -> "Span":
        """Returns the span of a new call within this span."""
        call = new_id()
        return Span(self.trace or call, call, call)

    def new_phase(self) -> "Span":
        """Returns the span of a new phase within this span."""
        return Span(self.trace, self.call, new_id())


NO_SPAN = Span()
