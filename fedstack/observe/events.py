"""What can be watched: typed events with plain data in them, numbers and names, never values or errors themselves.

Events of one call have its id in `call`. Calls, and phases within them, are *spans*: a started and an ended event with
the same id. What happens within a span has that id in `parent`. `trace` is the id of the outermost call, which differs
from `call` where a leaf function has called a computation. Ids are 16 hexadecimal digits, drawn at random; the ids of a
call reach the workers that do its work, so spans of several processes join. What happens outside of any call, or for a
client that does not watch, has no ids: they are empty.
"""

import time

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
    """What is known of a client phase, or of a part of one at a worker.

    The process that calls has a phase for all clients, and within it a part for each worker. At a worker, the phase
    that runs there is within its part.

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
      bytes_sent: What went to the worker; 0 if it ran here.
      bytes_received: What came back.
      error: The name of the class of what it raised; empty if it went well.
    """

    seconds: float
    bytes_sent: int = 0
    bytes_received: int = 0
    error: str = ""


@attrs.frozen(kw_only=True)
class ClientsChanged(Event):
    """Some clients of a call have begun or ended: a block of them at a time.

    Numbers are changes: adding them up gives those of an attempt, since each `CallRetried` begins anew. Workers tell of
    their clients about once a second.

    Attributes:
      expected: How many clients a phase has that has begun.
      started: How many clients have begun.
      done: How many of those are done.
      failed: How many of those have failed.
      given_up: How many of those ended otherwise: another one failed beside which they ran, or their worker was lost.
        Some of them may be done, of which the process that tells has not heard.
    """

    expected: int = 0
    started: int = 0
    done: int = 0
    failed: int = 0
    given_up: int = 0


@attrs.frozen(kw_only=True)
class Folded(Event):
    """What clients contributed, folded while they ran, has become the results of a phase's aggregations.

    Attributes:
      what: The aggregations, such as `federated_sum`.
      clients: How many clients there are.
      seconds: How long it took to make the results of what was folded.
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
    """A worker that was ready is not any more.

    Attributes:
      worker: Its address.
      error: The name of the class of the cause.
      reason: The cause, in some words.
    """

    worker: str
    error: str
    reason: str


@attrs.frozen(kw_only=True)
class SessionOpened(Event):
    """A client has opened a session at this server.

    Attributes:
      session: The beginning of its id.
      clients: The number of clients that its client asked for.
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
    """A leaf function was made ready to run, for the first time in this place.

    Attributes:
      name: Its name.
      carrier: The kind of message that it came in, such as `fedstack.v1.PythonReference`.
      seconds: How long it took.
    """

    name: str
    carrier: str
    seconds: float


@attrs.frozen(kw_only=True)
class WorkCancelled(Event):
    """Nobody waits for some work on a thread any more, and it goes on: a Python function cannot be stopped."""


@attrs.frozen(kw_only=True)
class LoopStalled(Event):
    """The event loop of a server stood still, and all its clients waited.

    Attributes:
      seconds: For how long.
    """

    seconds: float


@attrs.frozen(kw_only=True)
class RpcEnded(Event):
    """A server has answered a call of a client.

    Attributes:
      method: Such as `fedstack.v1.ExecutorExtensions/RunPhase`; `(other)` for one that the server does not have.
      code: The name of the status, such as `OK`.
      seconds: How long it took.
      bytes_received: How much came in messages.
      bytes_sent: How much went out.
    """

    method: str
    code: str
    seconds: float
    bytes_received: int = 0
    bytes_sent: int = 0
