"""Defines calls, the scheduler's view of closures and workers, and the actions that it requests."""

import enum
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from fedstack.computations.types.language import ConcreteComputation, FederatedType, FunctionType, StructType, Type
from fedstack.computations.types.type_structure import fields_of, is_client_valued

# A closure runs a tree: the call of a function with constants and with the values of other closures.


@attrs.frozen(eq=False)
class CalledFunction:
    """A function that closures call. Workers keep it for as long as anything refers to this.

    Attributes:
      computation: The computation; it keeps a Python function alive.
      name: Its name in messages.
      signature: The parameters of the Python function that it was made from, if they are known.
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
    """A value in this process.

    Attributes:
      payload: The value.
      type_signature: Its type.
      is_shared: Whether many calls use it, so that workers keep it for as long as anything refers to this.
    """

    payload: object
    type_signature: Type
    is_shared: bool = False


@attrs.frozen(eq=False)
class ResultArgument:
    """The value of a closure, as an argument.

    Attributes:
      closure: The closure.
      type_signature: Its type.
      boxed: Whether it is in a box.
      clients: The number of clients that it has values for.
    """

    closure: "Closure"
    type_signature: Type
    boxed: bool = False
    clients: int = 0


@attrs.frozen(eq=False)
class StructArgument:
    """A struct of other arguments."""

    names: Sequence[str | None]
    members: "Sequence[Argument]"


@attrs.frozen(eq=False)
class ClosureCall:
    """A call that a closure runs, or an argument that takes a value out of its box.

    Attributes:
      function: The function that it calls.
      argument: The argument; `None` if the function has no parameter.
      clients: The number of clients of the federated values in the argument.
      boxed: Whether its result is in a box.
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
    """The state of a closure. A closure is in exactly one state; values are human-readable."""

    WAITING = "waiting for its arguments"
    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    """Its value is at a worker, or this process has a copy."""
    LOST = "lost, and rebuilt when it is needed"
    """It was ready, but every holder of its value is gone."""
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({ClosureState.READY, ClosureState.LOST, ClosureState.FAILED, ClosureState.CANCELLED})
"""States in which nothing is left to run, unless a lost value is needed."""


@attrs.define(eq=False, repr=False)
class WorkerState:
    """A worker between two losses: after a loss the same worker gets a new state.

    Attributes:
      index: The index of the worker.
      name: Its name in errors and in its representation.
      threads: How many calls it runs at the same time at most; `None` if it is not known.
      running: The closures given to it, and when, until it has answered for each; including closures cancelled since.
      values: The closures whose values it holds.
      fetching: The closures among them whose values are being fetched.
      to_fetch: The closures in `fetching` whose fetch has not begun.
      refused: The closures whose values could not be fetched when the worker was about to stop.
      calls: How many calls to it are in flight.
      due: When it may be given more work although calls are in flight.
      silent: Whether it does not answer, and so gets no more work.
      draining: Whether it is about to stop, and so gets no more work.
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
    """A call to run once at some worker, and its outcome. Only its scheduler changes it.

    Attributes:
      call: The call to run; `None` once it cannot run again.
      needs: The closures whose values are its arguments.
      prefetch: Whether its value is fetched before the closure counts as ready.
      repeatable: Whether it may run again after a worker was lost.
      name: Its name in errors.
      state: Its state.
      held: The handle of its value at each worker that has it.
      copy: Its value in this process, in a tuple of one; `None` if there is none.
      error: Why it failed.
      wanted: Whether its value should be fetched to this process.
      refusal: Why fetching it failed, for the next caller who wants it.
      users: How many references to its value there are: the caller's handle, and closures that have not ended.
      missing: How many of its arguments are not available yet.
      dependents: The closures that wait for it.
      depth: The most calls that have to be repeated one after another to rebuild it.
      callbacks: Called once, when it has ended, or when its value was fetched or could not be.
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
        """Whether its value is available as an argument of other closures."""
        return self.state is ClosureState.READY

    @property
    def is_here(self) -> bool:
        """Whether this process has the value or the error."""
        return self.copy is not None or self.error is not None

    def __repr__(self) -> str:
        where = "".join(f" at {worker.name}" for worker in self.held)
        return f"<Closure {self.name!r} {self.state.value}{where}>"


# The actions that a scheduler requests.


@attrs.frozen
class Notify:
    """Call the callbacks that wait for closures."""

    callbacks: Sequence[Callable[[], None]]


@attrs.frozen
class Run:
    """Run closures at a worker, in one or a few calls; answer with `succeeded`, `failed` or `gone` for each."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Stop:
    """Stop closures at a worker that were cancelled while they were running, if possible."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Fetch:
    """Fetch values from a worker; answer with `copied` or `not_fetched` for each."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Leave:
    """Release a worker that is about to stop: it has no more work, and its values have been fetched."""

    worker: WorkerState


@attrs.frozen
class Search:
    """Look for a worker, since there is none; if none appears, answer with `gave_up`."""


@attrs.frozen
class AskAgain:
    """Ask for actions after this many seconds, even if nothing happens until then."""

    seconds: float


Action = Notify | Run | Stop | Fetch | Leave | Search | AskAgain
