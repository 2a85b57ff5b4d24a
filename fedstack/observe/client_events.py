"""Defines the events that tell what becomes of clients; see `events.py`."""

import attrs

from fedstack.observe.events import Event


@attrs.frozen(kw_only=True)
class ClientsHandedIn(Event):
    """A worker has handed in the contribution of its first clients, which are not lost if the worker is lost later.

    Attributes:
      worker: The address of the worker.
      first_client: The index of the first of these clients.
      clients: The number of these clients.
    """

    worker: str
    first_client: int
    clients: int


@attrs.frozen(kw_only=True)
class ClientsTakenOver(Event):
    """A worker that was idle runs clients that another worker has not begun, or that it may not end in time.

    Attributes:
      worker: The worker that had the clients.
      by: The worker that runs the clients now; empty if the first worker drains, and others have not been chosen yet.
      first_client: The index of the first of these clients.
      clients: The number of these clients.
      runs_twice: Whether the first worker runs the clients as well. The first contribution counts.
    """

    worker: str
    by: str
    first_client: int
    clients: int
    runs_twice: bool


@attrs.frozen(kw_only=True)
class ClientsRetried(Event):
    """A worker was lost, and its clients will run on the workers that are available after a pause.

    Attributes:
      worker: The address of the lost worker.
      first_client: The index of the first of the lost clients.
      clients: The number of lost clients. Clients that the worker had handed in are not lost.
      attempt: The number of times that these clients have been lost so far.
      pause: The time until the clients may run again, in seconds.
      error: The class name of the error.
    """

    worker: str
    first_client: int
    clients: int
    attempt: int
    pause: float
    error: str


@attrs.frozen(kw_only=True)
class ClientsRan(Event):
    """Clients have run together on a worker. Told once all clients of the phase have run.

    Attributes:
      number: The number of the phase within the call, counted from 0.
      first_client: The index of the first client.
      clients: The number of clients, including those that have failed.
      worker: The worker; empty for this process.
      seconds: The time that the clients took together, in seconds.
    """

    number: int
    first_client: int
    clients: int
    worker: str
    seconds: float


@attrs.frozen(kw_only=True)
class ClientFailed(Event):
    """A client has failed and is left out, because the call tolerates failures. Told once all clients have run.

    Attributes:
      client: The index of the client.
      number: The number of the phase within the call, counted from 0.
      kind: `failed` or `late`.
      error: The class name of the error.
      message: The message of the error.
      worker: The worker; empty for this process, and for a client that did not run to its end.
      seconds: The time that the client took, in seconds; 0 if it is not known.
    """

    client: int
    number: int
    kind: str
    error: str
    message: str
    worker: str
    seconds: float


@attrs.frozen(kw_only=True)
class ClientsChanged(Event):
    """A block of a call's clients has started or ended.

    The numbers are increments. Add them up to get the totals of the current attempt, and reset the totals after each
    `CallRetried`. Increments are negative for clients that run again after the loss of a worker. Workers report about
    once per second.

    Attributes:
      expected: The number of clients of a phase that has started.
      started: The number of clients that have started.
      done: The number of started clients that have succeeded.
      failed: The number of started clients that have failed.
      given_up: The number of started clients that ended because another client failed or because their worker was
        lost. Some of these clients may have succeeded without having been reported.
    """

    expected: int = 0
    started: int = 0
    done: int = 0
    failed: int = 0
    given_up: int = 0
