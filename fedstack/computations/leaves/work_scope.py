"""Defines the scope of work: the caller, and the policy, limits, progress counter and prepared leaves that apply.

The work of users runs deep inside the runtime: on threads, in tasks and in leaf runtimes. All information about the
caller is in one frozen object, which is stored in fedstack's only context variable and inherited by tasks and threads.
Three modules enter a scope: `contexts/invocation.py` for an invocation, `host/calls/call_router.py` for a call to a
server, and `service/executor/service_core.py` for the work of a session.
"""

import contextlib
import contextvars
import enum
from collections.abc import Callable, Generator, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import attrs

from fedstack.computations.leaves import carrier_policy
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.observe.events import NO_SPAN, Span

if TYPE_CHECKING:
    from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves  # it imports `work_scope`

MAX_STEPS = 1_000_000
_E = TypeVar("_E", bound="SystemScope")


Environment = Callable[[], contextlib.AbstractContextManager[object]]


class ClientCounter(Protocol):
    """The interface for counting the clients of an invocation, see `executors/concurrency/progress.py`."""

    def expect(self, clients: int) -> None:
        """Adds the number of clients in a phase that starts."""
        ...

    def started(self, clients: int) -> None:
        """Adds a number of clients whose work has started."""
        ...

    def finished(self, clients: int) -> None:
        """Adds a number of clients whose work has finished."""
        ...

    def failed(self, clients: int, given_up: int = 0) -> None:
        """Adds a number of clients that failed, and a number of started clients that were abandoned."""
        ...

    def withdrawn(self, done: int, running: int, failed: int) -> None:
        """Takes back clients that were counted, because they run again on another worker."""
        ...

    def elsewhere(self, lost: int = 0, moved: int = 0, twice: int = 0) -> None:
        """Adds clients that run again after a loss, that moved to another worker, or that run on two workers."""
        ...

    def watch(self, worker: Any) -> None:
        """Registers a `progress.ReportsWork` that does work for the invocation."""
        ...


class WorkKind(enum.Enum):
    """The kind of call that runs users' functions. It determines whether an error is attributed to the call itself."""

    COMPUTATION = "computation"
    CLOSURE = "closure"
    METHOD = "method"


class SystemScope:
    """The base class of a system's additions to the scope, which only their system reads and changes."""

    __slots__ = ()

    def of_invocation(self: _E) -> _E | None:
        """Returns the addition that an invocation inside the work inherits; by default `None`."""
        return None


_NO_SYSTEMS: Mapping[type[SystemScope], SystemScope] = MappingProxyType({})


@attrs.frozen(kw_only=True, eq=False, slots=False)
class WorkScope:
    """The caller of work and the conditions under which it runs. The default is the scope of the process's own work.

    Scopes are immutable. `replace`, `adding` and `of_invocation` return a changed copy.

    Attributes:
      caller: The caller, identified by token or address; empty if callers cannot be distinguished.
      origin: The connection or session, which distinguishes callers if `caller` is empty.
      kind: The kind of call.
      policy: The policy of a service for leaves that its clients send; `None` for the process's own work.
      max_steps: The maximum number of steps of a computation after its calls are unfolded. Without a limit, a message
        of a few kilobytes could unfold to any number of steps.
      leaves: The leaves that a service has loaded in advance; `None` if executors load leaves themselves.
      environment: Creates the context manager that a thread of a pool enters around each piece of work. It sets up the
        language's context stack, so that computations called inside a leaf find a context.
      abandoned: The `AbandonedWork` that limits how much cancelled work may still run; `None` if only the limit of each
        pool applies.
      progress: The counter of clients; `None` if clients are not counted.
      losses: The `InvocationLosses`, which record lost workers and allow retries; `None` if lost work is not retried.
      span: The position in a call, for observers; empty without observers.
      client_credentials: The `ClientCredentials` with which functions connect to other servers; `None` for none.
      reads: Yields the blocks of elements of a sequence that was sent as a reference, given the `ReferenceGroup` and
        the index of the sequence in it; `None` if references must not be read.
      cores: The maximum number of cores to use concurrently; `None` for all cores of the process.
      systems: The additions of systems, by class.
    """

    caller: str = ""
    origin: str = ""
    kind: WorkKind = WorkKind.COMPUTATION
    policy: CarrierPolicy | None = None
    max_steps: int = MAX_STEPS
    leaves: "LoadedLeaves | None" = None
    environment: Environment = contextlib.nullcontext
    abandoned: Any = None
    progress: ClientCounter | None = None
    losses: Any = None
    span: Span = NO_SPAN
    client_credentials: Any = None
    reads: Callable[[Any, int], Iterator[Any]] | None = None
    cores: int | None = None
    systems: Mapping[type[SystemScope], SystemScope] = _NO_SYSTEMS

    @property
    def owner(self) -> str:
        """The caller, or the origin if the caller is unknown; empty for this process's own work.

        Threads are shared fairly among owners.
        """
        return self.caller or self.origin

    @property
    def is_for_others(self) -> bool:
        """Whether the work is done for another process."""
        return self.policy is not None

    @property
    def is_contained(self) -> bool:
        """Whether exceptions that would end a process, such as SystemExit, must not end this process.

        This is true for work that is done for other processes, and for a coordinator's closures, which run on a shared
        event loop.
        """
        return self.is_for_others or self.kind is WorkKind.CLOSURE

    def replace(self, **changes: Any) -> "WorkScope":
        """Returns a copy of this scope in which some fields are replaced.

        Every call and invocation creates a copy, so this method avoids `attrs.evolve`, which takes ten times as long.
        """
        scope = object.__new__(WorkScope)
        fields = vars(scope)
        fields.update(vars(self), **changes)
        assert len(fields) == _FIELDS, f"Expected fields of a scope, found {', '.join(changes)}"
        return scope

    def adding(self, *systems: SystemScope) -> "WorkScope":
        """Returns a copy of this scope with additions of systems, replacing earlier additions of the same systems."""
        return self.replace(systems={**self.systems, **{type(system): system for system in systems}})

    def of(self, system: type[_E]) -> _E | None:
        """Returns the addition of a system, or `None` if the system has not added anything."""
        return cast("_E | None", self.systems.get(system))

    def of_invocation(self, environment: Environment, losses: Any, span: Span) -> "WorkScope":
        """Returns the scope of an invocation inside this scope. The invocation counts its own clients only."""
        systems = self.systems
        if systems:
            inside = [found for system in systems.values() if (found := system.of_invocation()) is not None]
            systems = {type(system): system for system in inside}
        return self.replace(
            kind=WorkKind.COMPUTATION,
            environment=environment,
            progress=None,
            losses=losses,
            span=span,
            systems=systems,
        )

    def under(self, policy: CarrierPolicy) -> "WorkScope":
        """Returns a copy of this scope with another policy and without leaves that were loaded in advance."""
        return self.replace(policy=policy, leaves=None)

    @contextlib.contextmanager
    def entered(self) -> Generator["WorkScope", None, None]:
        """Returns a context manager that makes this the current scope."""
        outer = current_scope()
        _scope.set(self)
        try:
            yield self
        finally:
            _scope.set(outer)  # reset() would fail if a coroutine has moved to a loop with another context


_FIELDS = len(attrs.fields(WorkScope))
_OF_THIS_PROCESS = WorkScope()
_scope: contextvars.ContextVar[WorkScope] = contextvars.ContextVar("work_scope", default=_OF_THIS_PROCESS)


def current_scope() -> WorkScope:
    """Returns the scope of the current work."""
    return _scope.get()


def set_scope(scope: WorkScope) -> None:
    """Makes `scope` the current scope for the rest of the task, and for tasks and threads that the task starts."""
    _scope.set(scope)


def change_scope(**changes: Any) -> None:
    """Replaces some fields of the current scope for the rest of the task, like `set_scope`."""
    _scope.set(_scope.get().replace(**changes))


def begin_invocation(environment: Environment, losses: Any, span: Span | None) -> WorkScope:
    """Enters the scope of an invocation and returns the outer scope.

    The caller restores the outer scope with `set_scope` when the invocation ends.

    Args:
      environment: See `WorkScope`.
      losses: See `WorkScope`.
      span: The span of the call; `None` for the span of the outer scope.
    """
    outer = _scope.get()
    _scope.set(outer.of_invocation(environment, losses, outer.span if span is None else span))
    return outer


def current_policy() -> CarrierPolicy:
    """Returns the policy of the service that runs the current work, or this process's policy for its own work."""
    return _scope.get().policy or carrier_policy.policy
