"""Says for whom work is done, and under which policy, limits, progress and prepared leaves.

Work of users runs deep inside: on threads, in tasks, in runtimes of leaves. What it has to know of whoever asked for it
is in one frozen object, in the one context variable of fedstack; tasks and threads inherit it. Three modules enter a
scope: `contexts/invocation.py` for an invocation, `service/host/call_router.py` for a call at a server,
`service/executor/sessions/service_core.py` for the work of a session. Parts that belong to higher rooms, and that
several rooms use, are protocols here.
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
from fedstack.observe.spans import NO_SPAN, Span

if TYPE_CHECKING:
    from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves  # which looks at the scope itself

MAX_STEPS = 1_000_000
_E = TypeVar("_E", bound="SystemScope")


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


class ReadsReferences(Protocol):
    """Reads sequences that have come as references: `service/data/consumer/reference_reader.py`."""

    def blocks(self, group: Any, place: int) -> Iterator[Any]:
        """Yields the elements of a sequence, some at a time.

        Args:
          group: The references that came together, a `ReferenceGroup`.
          place: Which of them it is.
        """
        ...


class WorkKind(enum.Enum):
    """What kind of call runs functions of users: whose the errors are that these meet depends on it."""

    COMPUTATION = "computation"
    CLOSURE = "closure"
    METHOD = "method"


class SystemScope:
    """What one system adds to the scope of its work; deriving classes are frozen, and only their system reads them."""

    __slots__ = ()

    def of_invocation(self: _E) -> _E | None:
        """Returns what an invocation inside of the work has of it; by default nothing."""
        return None


_NO_SYSTEMS: Mapping[type[SystemScope], SystemScope] = MappingProxyType({})


@attrs.frozen(kw_only=True, eq=False, slots=False)
class WorkScope:
    """For whom work is done, and how. The default is that of a process which works for itself.

    A scope is made of another one by `replace`, `adding` or `of_invocation`. All of them start from a copy of the
    whole, so that a field that is added here reaches everything.

    Attributes:
      caller: Whose work it is, by token or address; empty where callers cannot be told apart.
      origin: Where it came from, a connection or a session; tells callers apart where `caller` does not.
      kind: What kind of call it is.
      policy: Which leaves a service lets its clients bring; `None` where work is the process's own.
      max_steps: The most steps of a computation once its calls are unfolded: a few kilobytes can unfold to any number.
      leaves: What a service has loaded ahead; `None` where executors load leaves themselves.
      environment: Entered by a thread of a pool around each piece of work; it puts the language's context stack in
        order, so that a computation called inside a leaf finds a context.
      abandoned: The `AbandonedWork` that bounds what goes on although it was cancelled; `None` where there is no bound
        but that of each pool.
      progress: Counts clients; `None` where nobody wants to know.
      losses: The `LossLedger` of the invocation: where workers ended; `None` where nobody tries again.
      span: Where in a call it is, for those who watch; none where nobody does.
      client_credentials: The `ClientCredentials` that functions dial other servers with; `None` for none.
      reads: Reads sequences that came as references; `None` where nothing may be read for others.
      cores: On how many cores it computes at the same time at most; `None` for all that the process may use.
      systems: What systems add, by its class.
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
    reads: ReadsReferences | None = None
    cores: int | None = None
    systems: Mapping[type[SystemScope], SystemScope] = _NO_SYSTEMS

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
        return self.is_for_others or self.kind is WorkKind.CLOSURE

    def replace(self, **changes: Any) -> "WorkScope":
        """Returns this scope with other values in some fields.

        Each call and each invocation makes one: `attrs.evolve` would take ten times as long.
        """
        scope = object.__new__(WorkScope)
        fields = vars(scope)
        fields.update(vars(self), **changes)
        assert len(fields) == _FIELDS, f"Expected fields of a scope, found {', '.join(changes)}"
        return scope

    def adding(self, *systems: SystemScope) -> "WorkScope":
        """Returns this scope with what systems add, in place of what the same systems had added."""
        return self.replace(systems={**self.systems, **{type(system): system for system in systems}})

    def of(self, system: type[_E]) -> _E | None:
        """Returns what a system has added; `None` if it has added nothing."""
        return cast("_E | None", self.systems.get(system))

    def of_invocation(self, environment: Environment, losses: Any, span: Span) -> "WorkScope":
        """Returns the scope of an invocation that begins in this one; clients outside of it do not count there."""
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
        """Returns the same scope with another policy, under which nothing has been loaded ahead."""
        return self.replace(policy=policy, leaves=None)

    @contextlib.contextmanager
    def entered(self) -> Generator["WorkScope", None, None]:
        """Makes this the current scope for the block."""
        outer = current_scope()
        _scope.set(self)
        try:
            yield self
        finally:
            _scope.set(outer)  # not reset(): a coroutine may have moved to a loop, with a context of its own


_FIELDS = len(attrs.fields(WorkScope))
_OF_THIS_PROCESS = WorkScope()
_scope: contextvars.ContextVar[WorkScope] = contextvars.ContextVar("work_scope", default=_OF_THIS_PROCESS)


def current_scope() -> WorkScope:
    """Returns the scope of the work that runs."""
    return _scope.get()


def set_scope(scope: WorkScope) -> None:
    """Makes `scope` the current one for the rest of a task, and for what it starts."""
    _scope.set(scope)


def change_scope(**changes: Any) -> None:
    """Gives the current scope other values in some fields, as `set_scope` does."""
    _scope.set(_scope.get().replace(**changes))


def current_policy() -> CarrierPolicy:
    """Returns the policy in force: that of the service which runs the current work, else this process's own."""
    return _scope.get().policy or carrier_policy.policy
