"""Defines engines, which run traced functions for the verbs, and the generic operators that they run themselves.

A `ProgramEngine` runs programs in one place, once or for whole columns of clients. A `PhaseEngine` (`phase_engine.py`)
knows clients and runs phases over them. Engines stand on engines as their executors do. They are private until 1.0; an
executor of another origin has none, and is driven through the verbs (`one_by_one.py`).
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
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.foundations.error_text import name_text

_OPERATIONS: dict[str, np.ufunc] = {
    "generic_plus": np.add,
    "generic_multiply": np.multiply,
    "generic_divide": np.true_divide,
}


class Arithmetic(BoundOperation):
    """A generic operator on structs of tensors. Integers keep their dtype and wrap; their quotients are float64."""

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
    """One run of a traced function, as a whole or part by part."""

    async def pull(self, path: tuple[int, ...], argument: object) -> object:
        """Runs the work that a member of the result needs and that has not run yet; returns the member's payload.

        Args:
          path: The positions that lead to the member; none for the whole result.
          argument: The payload of the argument. Members of a struct that are not needed may be `UNPULLED`.
        """
        ...


class Engine(abc.ABC):
    """Runs traced functions."""

    @property
    @abc.abstractmethod
    def drives_inline(self) -> bool:
        """Whether work needs no event loop unless it asks for one (`need_event_loop`)."""

    @property
    def programs(self) -> "ProgramEngine | None":
        """This engine, if it runs programs."""
        return None

    @property
    def phases(self) -> "PhaseEngine | None":
        """This engine, if it runs phases."""
        return None

    @property
    def known_clients(self) -> int | None:
        """The number of clients that values have to be for; `None` if the engine does not say."""
        return None

    @property
    def leaf_threads(self) -> LeafThreads | None:
        """The threads of the leaf engine below, for fedstack's own work beside that of the leaves."""
        return None

    def accepts(self, computation: computation_pb2.Computation, executor: Executor) -> None:  # noqa: B027
        """Checks that a computation of this kind runs here. By default all do.

        Args:
          computation: The computation.
          executor: The executor that received it, for the message.

        Raises:
          InvalidComputationError: If it does not; the message names an executor that takes it.
        """

    @abc.abstractmethod
    def begin(self, function: Function, *, in_parts: bool = False) -> FunctionRun:
        """Begins to run a function.

        Args:
          function: The function.
          in_parts: Whether members of the result are pulled one by one, and each runs only the work that it needs.
        """

    async def run(self, function: Function, argument: object) -> object:
        """Runs a function and returns the payload of its whole result."""
        return await self.begin(function).pull((), argument)

    def over(self, wrap: "Callable[[ProgramEngine], ProgramEngine]") -> "Engine | None":
        """Returns this engine with its program engine wrapped; `None` if programs run elsewhere."""
        return None

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of the given type, where streams of user code may run."""
        return work()

    def close(self) -> None:  # noqa: B027
        """Closes what is open for this engine only. Idempotent; never raises."""


class ProgramEngine(Engine):
    """Runs programs in one place, without placements."""

    @property
    def programs(self) -> "ProgramEngine":
        return self

    @abc.abstractmethod
    def runs_intrinsic(self, uri: str) -> bool:
        """Returns whether this engine, or one below it, runs the intrinsic."""

    @abc.abstractmethod
    def link(self, program: Program) -> Program:
        """Returns the program with an operation for each of its sources.

        Coroutines use `linked`, which may load on another thread.

        Raises:
          LoadNeeded: If a leaf computation has to be loaded, and the caller's thread runs an event loop.
          UnsupportedIntrinsicError: If no engine from here down runs one of its intrinsics.
          CarrierError: If a leaf computation cannot be loaded.
        """

    @abc.abstractmethod
    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        """Runs a linked program once: payloads in, payloads out."""

    @abc.abstractmethod
    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        """Runs a linked program once per client and gives its results to `sink`, block by block."""

    async def linked(self, program: Program) -> Program:
        """Links a program, on a leaf thread if that loads leaf computations and would block an event loop."""
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
                f"Expected a leaf computation, a literal or an intrinsic in {executor!r}, found a {kind}; put a "
                "ReferenceResolvingExecutor above it"
            )
        if kind == "intrinsic" and not self.runs_intrinsic(computation.intrinsic.uri):
            raise UnsupportedIntrinsicError(
                f"Expected an intrinsic that {executor!r} runs, found {name_text(computation.intrinsic.uri)!r}; the "
                "stack of local_executor_factory runs all of the language's"
            )
        type_spec = declared_type(computation)
        if contains_federated(type_spec):
            raise InvalidComputationError(
                f"Expected unplaced values in {executor!r}, found {type_spec}; put a FederatingExecutor above it"
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
        """Raises: there are no clients here."""
        raise no_clients("work at clients")

    async def run_select_task(self, task: SelectTask, run: ScheduleValues) -> object:
        """Raises: there are no clients here."""
        raise no_clients(task.uri)


class PassingEngine(ProgramEngine):
    """Passes everything through to another engine; subclasses override what they change.

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
    """Raised instead of blocking an event loop: loading may import anything, or compile for seconds.

    Attributes:
      threads: Where to load instead.
    """

    def __init__(self, threads: LeafThreads) -> None:
        super().__init__("Expected `linked` on an event loop, found `link`")
        self.threads = threads


def holds_up_a_loop() -> bool:
    """Returns whether work on the current thread blocks an event loop."""
    if runs_inline():
        return False  # the driver of this coroutine waits for it anyway
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
