"""Defines what is called, what a scheduler knows of a call and of a worker, and what it wants done about them."""

import enum
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from fedstack.computations.types.language import ConcreteComputation, FederatedType, FunctionType, StructType, Type
from fedstack.computations.types.type_structure import fields_of, is_client_valued

# What a closure runs is a tree: a call, of a function, with constants and with the values of other closures.


@attrs.frozen(eq=False)
class CalledFunction:
    """What closures call. Workers keep it for as long as anything refers to this.

    Attributes:
      computation: The computation; it keeps a Python function alive.
      name: What messages call it.
      signature: The parameters of the Python function that it is made of, if that tells them.
    """

    computation: ConcreteComputation
    name: str
    signature: inspect.Signature | None = None

    @property
    def type_signature(self) -> FunctionType:
        """Its type."""
        return self.computation.type_signature


@attrs.frozen(eq=False)
class ConstantArgument:
    """A value that is here.

    Attributes:
      payload: The value.
      type_signature: Its type.
      is_shared: Whether it comes in many calls, so that workers keep it for as long as anything refers to this.
    """

    payload: object
    type_signature: Type
    is_shared: bool = False


@attrs.frozen(eq=False)
class ResultArgument:
    """The value of a closure.

    Attributes:
      closure: The closure.
      type_signature: Its type.
      boxed: Whether it is in a box.
      clients: The number of clients that it has values of.
    """

    closure: "Closure"
    type_signature: Type
    boxed: bool = False
    clients: int = 0


@attrs.frozen(eq=False)
class StructArgument:
    """A struct of others."""

    names: Sequence[str | None]
    members: "Sequence[Argument]"


@attrs.frozen(eq=False)
class ClosureCall:
    """A call: what a closure runs, or an argument that takes a value out of its box.

    Attributes:
      function: What it calls.
      argument: With what; `None` without a parameter.
      clients: The number of clients of the federated values in the argument.
      boxed: Whether what it yields is in a box.
    """

    function: CalledFunction
    argument: "Argument | None"
    clients: int = 0
    boxed: bool = False

    def result_of(self, closure: "Closure") -> ResultArgument:
        """Returns the value of the closure that runs this, as an argument of others."""
        result_type = self.function.type_signature.result
        return ResultArgument(closure, result_type, self.boxed, self.clients if _has_clients(result_type) else 0)


Argument = ConstantArgument | ResultArgument | StructArgument | ClosureCall


def needs_of(argument: Argument | None) -> "tuple[Closure, ...]":
    """Returns the closures whose values are in an argument."""
    match argument:
        case ResultArgument():
            return (argument.closure,)
        case ClosureCall():
            return needs_of(argument.argument)
        case StructArgument():
            return tuple(need for member in argument.members for need in needs_of(member))
        case _:
            return ()


def _has_clients(type_spec: Type) -> bool:
    if isinstance(type_spec, StructType):
        return any(_has_clients(member) for _, member in fields_of(type_spec))
    return isinstance(type_spec, FederatedType) and is_client_valued(type_spec)


class ClosureState(enum.Enum):
    """What has become of a closure. It is in exactly one of these states; values are words for people."""

    WAITING = "waiting for its arguments"
    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    """Its value is at a worker, or a copy of it is here."""
    LOST = "lost, and rebuilt when it is needed"
    """It was ready, and what held its value is gone."""
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({ClosureState.READY, ClosureState.LOST, ClosureState.FAILED, ClosureState.CANCELLED})
"""In these states nothing is left to run, unless a lost value is needed."""


@attrs.define(eq=False, repr=False)
class WorkerState:
    """One worker, from one loss to the next: after a loss the same worker has another state.

    Attributes:
      index: The number of the worker.
      name: What errors and the representation call it.
      threads: How many calls it runs at the same time at most; `None` if that is not known.
      running: The closures that it was given, and when, until it has answered for each; also those cancelled since.
      values: The closures whose values it holds.
      fetching: Those of them whose values are on their way here.
      to_fetch: Those of these for which that has not begun.
      refused: Those whose values could not be brought here when it was about to stop.
      calls: How many calls to it are under way.
      due: When it may be given more although calls are under way.
      silent: Whether it does not answer, and gets nothing more.
      draining: Whether it is about to stop, and gets nothing more.
      lost: Whether it is gone.
    """

    index: int
    name: str
    threads: int | None = None
    running: "dict[Closure, float]" = attrs.field(factory=lambda: dict[Closure, float]())
    values: "dict[Closure, None]" = attrs.field(factory=lambda: dict[Closure, None]())
    fetching: "dict[Closure, None]" = attrs.field(factory=lambda: dict[Closure, None]())
    to_fetch: "dict[Closure, None]" = attrs.field(factory=lambda: dict[Closure, None]())
    refused: "dict[Closure, None]" = attrs.field(factory=lambda: dict[Closure, None]())
    calls: int = 0
    due: float = 0.0
    silent: bool = False
    draining: bool = False
    lost: bool = False

    def __repr__(self) -> str:
        return f"<WorkerState {self.name}, {len(self.running)} running, {len(self.values)} values>"


@attrs.define(eq=False, repr=False)
class Closure:
    """A call that is to run once at some worker, and what came of it. Only its scheduler changes what is here.

    Attributes:
      call: What to run; `None` once it cannot be run again.
      needs: The closures whose values are its arguments.
      prefetch: Whether its value is brought home before it counts as there.
      repeatable: Whether it may run again where a worker was lost.
      name: What errors call it.
      state: What has become of it.
      held: What stands for its value at each worker that has it.
      copy: Its value here, in a tuple of one; `None` if there is none.
      error: Why it failed.
      wanted: Whether its value is to be brought here.
      refusal: Why that failed, for the next caller who wants it.
      users: How many refer to its value: the caller's handle, and closures that have not ended.
      missing: How many of its arguments are not there yet.
      dependents: The closures that wait for it.
      depth: How many calls have to be repeated one after the other to rebuild it, at most.
      callbacks: Called when it has ended, or its value was brought here or could not be, and then forgotten.
    """

    call: ClosureCall | None
    needs: "tuple[Closure, ...]" = ()
    repeatable: bool = True
    prefetch: bool = False
    name: str = ""
    state: ClosureState = ClosureState.WAITING
    held: dict[WorkerState, Any] = attrs.field(factory=lambda: dict[WorkerState, Any]())
    copy: tuple[object] | None = None
    error: Exception | None = None
    wanted: bool = False
    refusal: Exception | None = None
    users: int = 0
    missing: int = 0
    dependents: "dict[Closure, None]" = attrs.field(factory=lambda: dict[Closure, None]())
    depth: int = 1
    callbacks: dict[Callable[[], None], None] = attrs.field(factory=lambda: dict[Callable[[], None], None]())

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to run."""
        return self.state in ENDED

    @property
    def is_there(self) -> bool:
        """Whether its value is there, as an argument of others."""
        return self.state is ClosureState.READY

    @property
    def is_here(self) -> bool:
        """Whether this process has the value, or the error."""
        return self.copy is not None or self.error is not None

    def __repr__(self) -> str:
        where = "".join(f" at {worker.name}" for worker in self.held)
        return f"<Closure {self.name!r} {self.state.value}{where}>"


# What a scheduler wants done.


@attrs.frozen
class Notify:
    """Call what waits for closures."""

    callbacks: Sequence[Callable[[], None]]


@attrs.frozen
class Run:
    """Run closures at a worker, in one call or a few; answer with `succeeded`, `failed` or `gone` for each."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Stop:
    """Stop closures at a worker that were cancelled while they ran, if possible."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Fetch:
    """Bring values here from a worker; answer with `copied` or `not_fetched` for each."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Leave:
    """Do without a worker that is about to stop: it has nothing more to do, and what it held is here."""

    worker: WorkerState


@attrs.frozen
class Search:
    """Look for a worker, since there is none; if none comes, answer with `gave_up`."""


@attrs.frozen
class AskAgain:
    """Ask for actions after so many seconds, even if nothing happens until then."""

    seconds: float


Action = Notify | Run | Stop | Fetch | Leave | Search | AskAgain
