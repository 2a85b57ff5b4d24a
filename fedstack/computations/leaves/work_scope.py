"""Says for whom work is done, and under which policy, limits, progress and prepared leaves.

Work of users runs deep inside: on threads, in tasks, in runtimes of leaves. What it has to know of whoever asked for it
is in one frozen object, in the one context variable of fedstack; tasks and threads inherit it. Three modules enter a
scope: `contexts/invocation.py` for an invocation, `service/server/calls/call_router.py` for a call at a server,
`service/executor/sessions/service_core.py` for the work of a session. Parts that belong to higher rooms are protocols
here.
"""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable, Generator, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from fedstack.computations.leaves import carrier_policy
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.observe.spans import NO_SPAN, Span

if TYPE_CHECKING:
    from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves  # which looks at the scope itself

MAX_STEPS = 1_000_000


class GatheredBytes(Protocol):
    """Bounds what steps of datasets gather: a `Budget` of `service/data/reading/ahead.py`."""

    def take(self, size: int, what: str) -> None:
        """Takes room for so many bytes, which a step gathers; gives it back for a negative number.

        Raises:
          ResourceLimitError: If there is not so much.
        """
        ...


Environment = Callable[[], contextlib.AbstractContextManager[object]]


class ClientCounter(Protocol):
    """Counts the clients of an invocation, and knows what runs for it: `executors/concurrency/progress.py`."""

    def expect(self, clients: int) -> None:
        """Adds the clients of a phase that begins."""
        ...

    def started(self, clients: int) -> None:
        """Notes that clients have begun."""
        ...

    def finished(self, clients: int) -> None:
        """Notes that clients are done."""
        ...

    def failed(self, clients: int, given_up: int = 0) -> None:
        """Notes that clients failed, and that others which had begun were given up."""
        ...

    def watch(self, worker: Any) -> None:
        """Notes what works for the invocation: a `progress.Worker`."""
        ...


class Losses(Protocol):
    """Remembers which clients ran where workers ended: `executors/remote/phases/lost_ranges.py`."""

    def __len__(self) -> int: ...

    def add(self, phase: object, clients: range, running: Iterable[int] = (), *, is_sure: bool = True) -> None:
        """Notes that a worker has ended while it ran a phase for a range of clients, or may have run it."""
        ...

    def forget(self, phase: object) -> None:
        """Forgets the losses of a phase."""
        ...

    def ended_with(self, phase: object, client: int) -> int:
        """Returns how many workers have ended while they had a client."""
        ...

    def suspects(self, phase: object) -> list[Any]:
        """Returns the clients that were in two of a phase's losses, as `lost_ranges.Suspects`."""
        ...


class Abandoned(Protocol):
    """Counts and bounds work that goes on although it was cancelled: `executors/concurrency/abandoned_work.py`."""

    @property
    def count(self) -> int:
        """How many pieces there are."""
        ...

    @property
    def refusal(self) -> Callable[[int], Exception]:
        """Returns the error for work that is refused; it gets the number of pieces."""
        ...

    def add(self) -> bool:
        """Counts one more; returns whether its thread is to be replaced."""
        ...

    def remove(self, was_replaced: bool) -> None:
        """Notes that one has ended."""
        ...


class ReadsReferences(Protocol):
    """Reads sequences that have come as references: `service/data/consumer/reference_reader.py`."""

    def blocks(self, group: Any, place: int) -> Iterator[Any]:
        """Yields the elements of a sequence, some at a time.

        Args:
          group: The references that came together, a `ReferenceGroup`.
          place: Which of them it is.
        """
        ...


@attrs.frozen(kw_only=True, eq=False)
class WorkScope:
    """For whom work is done, and how. The default is that of a process which works for itself.

    Attributes:
      caller: Whose work it is, by token or address; empty where callers cannot be told apart.
      origin: Where it came from, a connection or a session; tells callers apart where `caller` does not.
      policy: Which leaves a service lets its clients bring; `None` where work is the process's own.
      max_steps: The most steps of a computation once its calls are unfolded: a few kilobytes can unfold to any number.
      leaves: What a service has loaded ahead; `None` where executors load leaves themselves.
      environment: Entered by a thread of a pool around each piece of work; it puts the language's context stack in
        order, so that a computation called inside a leaf finds a context.
      abandoned: Counts and bounds abandoned work; `None` where there is no bound but that of each pool.
      progress: Counts clients; `None` where nobody wants to know.
      losses: Where workers ended during the invocation; `None` where nobody tries again.
      span: Where in a call it is, for those who watch; none where nobody does.
      worker_index: Which of its client's workers runs it; `None` where these have no numbers.
      kept: What functions keep for later calls of the same client; `None` where nothing of clients is kept.
      calls_with: The `ClientCredentials` that functions dial other servers with; `None` for none.
      reads: Reads sequences that came as references; `None` where nothing may be read for others.
      data_roots: The folders below which datasets may read files; `None` for all of them.
      cores: On how many cores it computes at the same time at most; `None` for all that the process may use.
      is_method: Whether it is the work of a registered method.
      loop: The event loop of executors of another origin that a thread waits for.
      is_wanted: Returns whether somebody still wants the elements of the dataset that is read; `None` for always.
      gathered: Bounds what steps of datasets gather; `None` where there is no bound.
      first_stamp: Returns the stamp that a file had when the pass that is read first opened it, given its path and its
        stamp now; `None` where each reading of a source is a pass.
      clock: Tells how long elements of datasets take to make, in seconds; a simulation has its own.
    """

    caller: str = ""
    origin: str = ""
    policy: CarrierPolicy | None = None
    max_steps: int = MAX_STEPS
    leaves: "LoadedLeaves | None" = None
    environment: Environment = contextlib.nullcontext
    abandoned: Abandoned | None = None
    progress: ClientCounter | None = None
    losses: Losses | None = None
    span: Span = NO_SPAN
    worker_index: int | None = None
    kept: MutableMapping[str, Any] | None = None
    calls_with: Any = None
    reads: ReadsReferences | None = None
    data_roots: tuple[str, ...] | None = None
    cores: int | None = None
    is_method: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    is_wanted: Callable[[], bool] | None = None
    gathered: GatheredBytes | None = None
    first_stamp: Callable[[str, tuple[int, ...]], tuple[int, ...]] | None = None
    clock: Callable[[], float] = time.perf_counter

    @property
    def owner(self) -> str:
        """Who takes turns at threads with others; empty for this process's own work."""
        return self.caller or self.origin

    @property
    def is_for_others(self) -> bool:
        """Whether work is another process's."""
        return self.policy is not None

    @property
    def is_contained(self) -> bool:
        """Whether what work raises to end the process that it is in must not end this one.

        So it is for others' work, and for a coordinator's, which runs on a loop that others need.
        """
        return self.is_for_others or self.worker_index is not None

    def of_invocation(self, environment: Environment, losses: Losses, span: Span) -> "WorkScope":
        """Returns the scope of an invocation that begins in this one; clients outside of it do not count there."""
        return WorkScope(  # `attrs.evolve` takes three times as long, and small invocations are many
            caller=self.caller,
            origin=self.origin,
            policy=self.policy,
            max_steps=self.max_steps,
            leaves=self.leaves,
            environment=environment,
            abandoned=self.abandoned,
            losses=losses,
            span=span,
            calls_with=self.calls_with,
            reads=self.reads,
            data_roots=self.data_roots,
            cores=self.cores,
            is_wanted=self.is_wanted,
            gathered=self.gathered,
            clock=self.clock,
        )

    def under(self, policy: CarrierPolicy) -> "WorkScope":
        """Returns the same scope with another policy, under which nothing has been loaded ahead."""
        return attrs.evolve(self, policy=policy, leaves=None)

    @contextlib.contextmanager
    def entered(self) -> Generator["WorkScope", None, None]:
        """Makes this the current scope for the block."""
        outer = current_scope()
        _scope.set(self)
        try:
            yield self
        finally:
            _scope.set(outer)  # not reset(): a coroutine may have moved to a loop, with a context of its own


_OF_THIS_PROCESS = WorkScope()
_scope: contextvars.ContextVar[WorkScope] = contextvars.ContextVar("work_scope", default=_OF_THIS_PROCESS)


def current_scope() -> WorkScope:
    """Returns the scope of the work that runs."""
    return _scope.get()


def set_scope(scope: WorkScope) -> None:
    """Makes `scope` the current one for the rest of a task, and for what it starts."""
    _scope.set(scope)


def current_policy() -> CarrierPolicy:
    """Returns the policy in force: that of the service which runs the current work, else this process's own."""
    return _scope.get().policy or carrier_policy.policy
