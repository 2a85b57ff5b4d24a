"""Defines the scope of work: for whom it is done, and under which policy, limits, progress and prepared leaves.

Work of users runs deep inside the runtime: on threads, in tasks, in runtimes of leaves. What it has to know about its
caller is in one frozen object, in the only context variable of fedstack, which tasks and threads inherit. Three modules
enter a scope: `contexts/invocation.py` for an invocation, `service/host/call_router.py` for a call at a server,
`service/executor/service_core.py` for the work of a session.
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
    from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves  # which looks at the scope itself

MAX_STEPS = 1_000_000
_E = TypeVar("_E", bound="SystemScope")


Environment = Callable[[], contextlib.AbstractContextManager[object]]


class ClientCounter(Protocol):
    """Counts the clients of an invocation, and watches what runs for it: `executors/concurrency/progress.py`."""

    def expect(self, clients: int) -> None:
        """Adds the clients of a phase that begins."""
        ...

    def started(self, clients: int) -> None:
        """Counts clients that have begun."""
        ...

    def finished(self, clients: int) -> None:
        """Counts clients that are done."""
        ...

    def failed(self, clients: int, given_up: int = 0) -> None:
        """Counts clients that failed, and others that were given up after they had begun."""
        ...

    def watch(self, worker: Any) -> None:
        """Watches what works for the invocation, a `progress.ReportsWork`."""
        ...


class WorkKind(enum.Enum):
    """The kind of call that runs functions of users; it decides to whom their errors are attributed."""

    COMPUTATION = "computation"
    CLOSURE = "closure"
    METHOD = "method"


class SystemScope:
    """What one system adds to the scope of its work. Subclasses are frozen, and read by their system only."""

    __slots__ = ()

    def of_invocation(self: _E) -> _E | None:
        """Returns the part that an invocation within the work inherits; by default nothing."""
        return None


_NO_SYSTEMS: Mapping[type[SystemScope], SystemScope] = MappingProxyType({})


@attrs.frozen(kw_only=True, eq=False, slots=False)
class WorkScope:
    """For whom work is done, and how. The default is the scope of a process that works for itself.

    A scope is made from another one by `replace`, `adding` or `of_invocation`. X    no further changes.

    Attributes:
      caller: The caller, by token or address; empty where callers cannot be distinguished.
      origin: The connection or session; it distinguishes callers where `caller` does not.
      kind: The kind of call.
      policy: The leaves that a service allows its clients to send; `None` for the process's own work.
      max_steps: The largest number of steps of a computation after its calls are unfolded: a few kilobytes can unfold
        to any number.
      leaves: The leaves that a service has loaded ahead; `None` where executors load leaves themselves.
      environment: Entered by a thread of a pool around each piece of work; it sets up the language's context stack, so
        that a computation called inside a leaf finds a context.
      abandoned: The `AbandonedWork` that limits cancelled work that continues; `None` for the limit of each pool only.
      progress: Counts clients; `None` if they are not counted.
      losses: The `LossLedger` of the invocation, where workers ended; `None` if there is no further attempt.
      span: The position in a call, for observers; empty without observers.
      client_credentials: The `ClientCredentials` with which functions dial other servers; `None` for none.
      reads: Yields the blocks of elements of a sequence that was sent as a reference, given its `ReferenceGroup` and
        its index there; `None` where nothing may be read for others.
      cores: The largest number of cores to compute on at the same time; `None` for all of the process.
      systems: The additions of systems, by their classes.
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
        """The caller or origin among which threads are shared fairly; empty for this process's own work."""
        return self.caller or self.origin

    @property
    def is_for_others(self) -> bool:
        """Whether the work is for another process."""
        return self.policy is not None

    @property
    def is_contained(self) -> bool:
        """Whether errors that end a process, such as SystemExit, must not end this one.

        That holds for the work of others, and for a coordinator's closures, which run on a shared loop.
        """
        return self.is_for_others or self.kind is WorkKind.CLOSURE

    def replace(self, **changes: Any) -> "WorkScope":
        """Returns this scope with some fields replaced.

        Each call and each invocation makes one, and `attrs.evolve` takes ten times as long.
        """
        scope = object.__new__(WorkScope)
        fields = vars(scope)
        fields.update(vars(self), **changes)
        assert len(fields) == _FIELDS, f"Expected fields of a scope, found {', '.join(changes)}"
        return scope

    def adding(self, *systems: SystemScope) -> "WorkScope":
        """Returns this scope with additions of systems, which replace earlier additions of the same systems."""
        return self.replace(systems={**self.systems, **{type(system): system for system in systems}})

    def of(self, system: type[_E]) -> _E | None:
        """Returns the addition of a system; `None` if there is none."""
        return cast("_E | None", self.systems.get(system))

    def of_invocation(self, environment: Environment, losses: Any, span: Span) -> "WorkScope":
        """Returns the scope of an invocation within this one, which counts its own clients only."""
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
        """Returns this scope with another policy, under which no leaves have been loaded ahead."""
        return self.replace(policy=policy, leaves=None)

    @contextlib.contextmanager
    def entered(self) -> Generator["WorkScope", None, None]:
        """Makes this the current scope for the block."""
        outer = current_scope()
        _scope.set(self)
        try:
            yield self
        finally:
            _scope.set(outer)  # not reset(): a coroutine may have moved to a loop with another context


_FIELDS = len(attrs.fields(WorkScope))
_OF_THIS_PROCESS = WorkScope()
_scope: contextvars.ContextVar[WorkScope] = contextvars.ContextVar("work_scope", default=_OF_THIS_PROCESS)


def current_scope() -> WorkScope:
    """Returns the scope of the work that runs."""
    return _scope.get()


def set_scope(scope: WorkScope) -> None:
    """Makes `scope` the current one for the rest of a task, and for tasks and threads that it starts."""
    _scope.set(scope)


def change_scope(**changes: Any) -> None:
    """Gives the current scope other values in some fields, as `set_scope` does."""
    _scope.set(_scope.get().replace(**changes))


def begin_invocation(environment: Environment, losses: Any, span: Span | None) -> WorkScope:
    """Enters the scope of an invocation, and returns the outer one, which `set_scope` restores at its end.

    Args:
      environment: See `WorkScope`.
      losses: See `WorkScope`.
      span: The span of the call; `None` for that of the outer scope.
    """
    outer = _scope.get()
    _scope.set(outer.of_invocation(environment, losses, outer.span if span is None else span))
    return outer


def current_policy() -> CarrierPolicy:
    """Returns the policy in force: that of the service that runs the current work, or else this process's own."""
    return _scope.get().policy or carrier_policy.policy
