"""Defines engines, which run traced functions for executors, and the generic operators that engines run themselves.

A `ProgramEngine` runs programs in one place, either once or for whole columns of clients. A `PhaseEngine`
(`phase_engine.py`) has clients and runs phases over them. Engines are stacked in the same way as their executors, and
are private until 1.0. An executor that is not part of fedstack has no engine and is driven through its verbs
(`one_by_one.py`).
"""

import abc
import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import numpy as np

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.plan.graph import Function, declared_type
from fedstack.computations.plan.intrinsics import quotient_type
from fedstack.computations.plan.program import IntrinsicSource, Program
from fedstack.computations.plan.tasks import PhaseTask, SelectTask, ServerTask
from fedstack.computations.types.language import Executor, TensorType, Type, computation_pb2
from fedstack.computations.types.type_structure import contains_federated, flatten, tensor_leaves, unflatten
from fedstack.computations.values.columns import Column, ScalarColumn
from fedstack.computations.values.tensor_values import read_only
from fedstack.errors import InvalidComputationError, UnsupportedIntrinsicError
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.base.schedule_run import ScheduleRun, ScheduleValues, no_clients, run_whole
from fedstack.executors.concurrency.coroutines import runs_inline
from fedstack.executors.concurrency.leaf_threads import LeafThreads, is_without_threads
from fedstack.foundations.error_text import name_text

_OPERATIONS: dict[str, np.ufunc] = {
    "generic_plus": np.add,
    "generic_multiply": np.multiply,
    "generic_divide": np.true_divide,
}


class Arithmetic(BoundOperation):
    """A generic operator on structs of tensors.

    Integers keep their dtype and wrap around on overflow; quotients of integers are float64.
    """

    def __init__(self, source: IntrinsicSource) -> None:
        self.name = source.uri
        self.operand: Type = source.arguments[0]
        self.result: Type = source.type
        self._operation = _OPERATIONS[source.uri]
        divides = source.uri == "generic_divide"
        types = quotient_type(self.operand) if divides else self.operand
        self._dtypes = [tensor.dtype for _, tensor in tensor_leaves(types)]

    def call(self, argument: object, client: int | None = None) -> object:
        left, right = cast("tuple[object, object]", argument)
        pairs = zip(flatten(left, self.operand), flatten(right, self.operand), self._dtypes)
        with np.errstate(all="ignore"):
            return unflatten(iter([self._apply(a, b, dtype) for a, b, dtype in pairs]), self.operand)

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        if isinstance(self.operand, TensorType) and argument is not None:
            left, right = argument.field(0), argument.field(1)
            if isinstance(left, ScalarColumn) and isinstance(right, ScalarColumn):
                with np.errstate(all="ignore"):
                    return ScalarColumn(self._operation(left.values, right.values).astype(self._dtypes[0], copy=False))
        return super().call_column(argument, first_client, size)

    def _apply(self, left: object, right: object, dtype: np.dtype) -> object:
        value = np.asarray(self._operation(np.asarray(left), np.asarray(right))).astype(dtype, copy=False)
        return value[()] if value.ndim == 0 else read_only(value)


def arithmetic_for(source: IntrinsicSource) -> BoundOperation | None:
    """Returns the operation for a generic operator, or `None` for any other intrinsic."""
    return Arithmetic(source) if source.uri in _OPERATIONS else None


if TYPE_CHECKING:
    from fedstack.executors.base.phase_engine import PhaseEngine

_T = TypeVar("_T")
_VALUES = ("data", "xla", "tensorflow", "literal", "intrinsic")


class FunctionRun(Protocol):
    """A single run of a traced function, either as a whole or member by member."""

    async def pull(self, path: tuple[int, ...], argument: object) -> object:
        """Runs the remaining work for a member of the result, and returns the payload of this member.

        Args:
          path: The positions that lead to the member; empty for the whole result.
          argument: The payload of the argument. Members of a struct that are not needed may be `UNPULLED`.
        """
        ...


class Engine(abc.ABC):
    """The part of an executor that runs traced functions."""

    @property
    @abc.abstractmethod
    def drives_inline(self) -> bool:
        """Whether work runs without an event loop unless it requests one with `need_event_loop`."""

    @property
    def programs(self) -> "ProgramEngine | None":
        """This engine if it runs programs, otherwise `None`."""
        return None

    @property
    def phases(self) -> "PhaseEngine | None":
        """This engine if it runs phases, otherwise `None`."""
        return None

    @property
    def known_clients(self) -> int | None:
        """The number of clients that federated values must have; `None` if the engine does not specify it."""
        return None

    @property
    def leaf_threads(self) -> LeafThreads | None:
        """The threads of the leaf engine below; `None` if there are none. They can also run fedstack's own work."""
        return None

    def accepts(self, computation: computation_pb2.Computation, executor: Executor) -> None:  # noqa: B027
        """Checks that this engine can run a computation of this kind. By default, all kinds are accepted.

        Args:
          computation: The computation.
          executor: The executor that received the computation, for the error message.

        Raises:
          InvalidComputationError: If the computation is not accepted. The message names an executor that accepts it.
        """

    @abc.abstractmethod
    def begin(self, function: Function, *, in_parts: bool = False) -> FunctionRun:
        """Returns a new run of a function. Its work starts when results are pulled.

        Args:
          function: The function.
          in_parts: Whether members of the result are pulled one by one, so that each pull runs only the work that its
            member needs.
        """

    async def run(self, function: Function, argument: object) -> object:
        """Runs a function and returns the payload of its whole result."""
        return await self.begin(function).pull((), argument)

    def over(self, wrap: "Callable[[ProgramEngine], ProgramEngine]") -> "Engine | None":
        """Returns a copy of this engine that uses a wrapped program engine; `None` if programs run elsewhere."""
        return None

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of type `type_spec`, on a thread that may run streams of user code."""
        return work()

    def close(self) -> None:  # noqa: B027
        """Releases the resources that belong to this engine alone. Idempotent; never raises."""


class ProgramEngine(Engine):
    """Runs programs in one place, without placements."""

    @property
    def programs(self) -> "ProgramEngine":
        return self

    @abc.abstractmethod
    def runs_intrinsic(self, uri: str) -> bool:
        """Returns whether this engine or an engine below it runs the intrinsic."""

    @abc.abstractmethod
    def link(self, program: Program) -> Program:
        """Returns the program with each source replaced by an operation that can run.

        Coroutines should call `linked`, which can load leaf computations on another thread.

        Raises:
          LoadNeeded: If a leaf computation has to be loaded and the caller's thread runs an event loop.
          UnsupportedIntrinsicError: If neither this engine nor an engine below it runs one of the intrinsics.
          CarrierError: If a leaf computation cannot be loaded.
        """

    @abc.abstractmethod
    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        """Runs a linked program once on payloads, and returns the payloads of its results."""

    @abc.abstractmethod
    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        """Runs a linked program once per client and passes the results to `sink`, block by block."""

    async def linked(self, program: Program) -> Program:
        """Returns the linked program.

        If linking has to load leaf computations and would block an event loop, it runs on a leaf thread.
        """
        try:
            return self.link(program)
        except LoadNeeded as needed:
            threads = needed.threads
        return await threads.run(lambda: self.link(program))

    def over(self, wrap: "Callable[[ProgramEngine], ProgramEngine]") -> "ProgramEngine":
        return wrap(self)

    def accepts(self, computation: computation_pb2.Computation, executor: Executor) -> None:
        kind = computation.WhichOneof("computation")
        if kind not in _VALUES:
            raise InvalidComputationError(
                f"Expected a leaf computation, a literal or an intrinsic in {executor!r}, found a {kind}; wrap this "
                "executor in a ReferenceResolvingExecutor"
            )
        if kind == "intrinsic" and not self.runs_intrinsic(computation.intrinsic.uri):
            raise UnsupportedIntrinsicError(
                f"Expected an intrinsic that {executor!r} supports, found {name_text(computation.intrinsic.uri)!r}; "
                "use local_executor_factory, whose stack supports all intrinsics of the language"
            )
        type_spec = declared_type(computation)
        if contains_federated(type_spec):
            raise InvalidComputationError(
                f"Expected unplaced values in {executor!r}, found a value of type {type_spec}; wrap this executor in a "
                "FederatingExecutor"
            )

    def begin(self, function: Function, *, in_parts: bool = False) -> FunctionRun:
        return ScheduleRun(function, self, None, in_parts=in_parts)

    async def run(self, function: Function, argument: object) -> object:
        return await run_whole(function, self, None, argument)

    async def run_server_task(self, task: ServerTask, inputs: Sequence[object]) -> object:
        """Runs server work and returns the payload of its result."""
        (result,) = await self.run_once(await self.linked(task.program), inputs)
        return result

    async def run_phase_task(self, task: PhaseTask, run: ScheduleValues) -> Sequence[object]:
        """Raises an error, because a program engine has no clients."""
        raise no_clients("work on clients")

    async def run_select_task(self, task: SelectTask, run: ScheduleValues) -> object:
        """Raises an error, because a program engine has no clients."""
        raise no_clients(task.uri)


class PassingEngine(ProgramEngine):
    """Passes all work to another engine. Subclasses override the methods whose behavior they change.

    Args:
      target: The engine below.
    """

    def __init__(self, target: ProgramEngine) -> None:
        self.target = target

    @property
    def drives_inline(self) -> bool:
        return self.target.drives_inline

    @property
    def leaf_threads(self) -> LeafThreads | None:
        return self.target.leaf_threads

    def runs_intrinsic(self, uri: str) -> bool:
        return self.target.runs_intrinsic(uri)

    def link(self, program: Program) -> Program:
        return self.target.link(program)

    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        return await self.target.run_once(program, inputs)

    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        await self.target.run_clients(program, inputs, clients, sink)

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        return await self.target.finish(work, type_spec)


class LoadNeeded(Exception):
    """Raised when loading a leaf computation would block an event loop.

    Loading may import modules or compile code for seconds.

    Attributes:
      threads: The threads on which to load the leaf computation instead.
    """

    def __init__(self, threads: LeafThreads) -> None:
        super().__init__("Expected a call of `linked` on an event loop, found a call of `link`; await `linked` instead")
        self.threads = threads


def holds_up_a_loop() -> bool:
    """Returns whether work on the current thread would block an event loop."""
    if runs_inline() or is_without_threads():
        return False  # the thread is blocked anyway
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
