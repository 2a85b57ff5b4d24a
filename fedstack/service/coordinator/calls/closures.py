"""Defines calls, the scheduler's view of closures and workers, and the actions that the scheduler requests."""

import enum
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from fedstack.computations.types.language import ConcreteComputation, FederatedType, FunctionType, StructType, Type
from fedstack.computations.types.type_structure import fields_of, is_client_valued

# The call of a closure is a tree. Its leaves are functions, constants, and the values of other closures.


@attrs.frozen(eq=False)
class CalledFunction:
    """A function that closures call. Workers keep the function while anything refers to this object.

    Attributes:
      computation: The computation to run. If it was made from a Python function, it keeps the function alive.
      name: The name of the function in messages.
      signature: The signature of the original Python function, if known.
    """

    computation: ConcreteComputation
    name: str
    signature: inspect.Signature | None = None

    @property
    def type_signature(self) -> FunctionType:
        """The type of the function."""
        return self.computation.type_signature


@attrs.frozen(eq=False)
class ConstantArgument:
    """An argument whose value is in this process.

    Attributes:
      payload: The payload of the value.
      type_signature: The type of the value.
      is_shared: Whether several calls use the value. Workers keep a shared value while anything refers to this object.
    """

    payload: object
    type_signature: Type
    is_shared: bool = False


@attrs.frozen(eq=False)
class ResultArgument:
    """An argument that is the value of a closure.

    Attributes:
      closure: The closure.
      type_signature: The type of the value.
      boxed: Whether the value is in a box.
      clients: The number of clients of the federated values in the value; 0 if there are none.
    """

    closure: "Closure"
    type_signature: Type
    boxed: bool = False
    clients: int = 0


@attrs.frozen(eq=False)
class StructArgument:
    """An argument that is a struct of other arguments."""

    names: Sequence[str | None]
    members: "Sequence[Argument]"


@attrs.frozen(eq=False)
class ClosureCall:
    """A call that a closure runs, or an argument that is computed by unpacking a box.

    Attributes:
      function: The function to call.
      argument: The argument; `None` if the function has no parameter.
      clients: The number of clients of the federated values in the argument; 0 if there are none.
      boxed: Whether the result is in a box.
    """

    function: CalledFunction
    argument: "Argument | None"
    clients: int = 0
    boxed: bool = False

    def result_of(self, closure: "Closure") -> ResultArgument:
        """Returns the value of `closure`, which runs this call, as an argument of other calls."""
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
    """The state of a closure. The values of the members are human-readable."""

    WAITING = "waiting for its arguments"
    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    """The value is on a worker, or this process has a copy."""
    LOST = "lost, and rebuilt when it is needed"
    """The closure was ready, but all workers that held its value are gone."""
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({ClosureState.READY, ClosureState.LOST, ClosureState.FAILED, ClosureState.CANCELLED})
"""The states in which a closure does not run again, unless its value is lost and needed."""


@attrs.define(eq=False, repr=False)
class WorkerState:
    """The scheduler's view of a worker. A worker that returns after it was lost gets a new state.

    Attributes:
      index: The index of the worker.
      name: The name of the worker in messages.
      threads: The maximum number of calls that the worker runs at the same time; `None` if unknown.
      running: The closures assigned to the worker, each with the time of the assignment. Cancelled closures are
        included until the worker reports that they have ended, or a time limit has passed.
      values: The closures whose values the worker holds.
      fetching: The closures in `values` whose values are being fetched.
      to_fetch: The closures in `fetching` whose fetch has not started.
      refused: The closures whose values could not be fetched while the worker was about to stop.
      calls: The number of calls to the worker that are in flight.
      due: The time from which the worker may receive more closures even while calls are in flight.
      silent: Whether the worker has stopped responding, and therefore receives no more closures.
      draining: Whether the worker is about to stop, and therefore receives no more closures.
      lost: Whether the worker has been lost.
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
    """A call to run once on any worker, and the outcome of the call. Only the scheduler modifies a closure.

    Attributes:
      call: The call to run; `None` once the closure cannot run again.
      needs: The closures whose values are arguments of the call.
      repeatable: Whether the closure may run again after its worker or its value is lost.
      prefetch: Whether the value is fetched before the closure counts as ready.
      name: The name of the closure in messages.
      state: The state of the closure.
      held: The handle to the value on each worker that holds the value.
      copy: A tuple with the value, if this process has the value; otherwise `None`.
      error: The reason why the closure failed or was cancelled.
      wanted: Whether the value should be fetched to this process.
      refusal: The error of the last fetch of the value, which is raised when the value is requested again.
      users: The number of users of the value: the caller's handle, and closures that have not ended.
      missing: The number of arguments that are not available yet.
      dependents: The closures that wait for the value.
      depth: The length of the longest chain of calls to repeat in order to rebuild the value.
      callbacks: The functions to call once, when the closure has ended, or when fetching its value has succeeded or
        failed.
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
        """Whether the closure has succeeded, failed, or been cancelled."""
        return self.state in ENDED

    @property
    def is_there(self) -> bool:
        """Whether the value is available as an argument of other closures."""
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
    """Call the callbacks of closures."""

    callbacks: Sequence[Callable[[], None]]


@attrs.frozen
class RunClosures:
    """Run closures on a worker, in only a few calls. Report each closure's end with `succeeded`, `failed` or `gone`."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Stop:
    """If possible, stop closures that were cancelled while they were running on a worker."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Fetch:
    """Fetch values from a worker. Report each outcome with `copied` or `not_fetched`."""

    worker: WorkerState
    closures: Sequence[Closure]


@attrs.frozen
class Leave:
    """Release a worker that is about to stop, now that it runs no closures and its values have been fetched."""

    worker: WorkerState


@attrs.frozen
class Search:
    """Wait for a worker, because none is available. Call `gave_up` if no worker becomes available."""


@attrs.frozen
class AskAgain:
    """Call `actions` again after `seconds`, even if no event occurs until then."""

    seconds: float


Action = Notify | RunClosures | Stop | Fetch | Leave | Search | AskAgain
