"""Defines engines: what runs traced functions for the verbs, and what executors ask of each other beyond the verbs.

A `ProgramEngine` runs programs in one place, once or for whole columns of clients. A `PhaseEngine` (`phase_engine.py`)
knows clients and runs phases over them. Engines stand on engines as their executors do. They are private until 1.0; an
executor of another origin has none, and is driven through the verbs (`one_by_one.py`, `verb_run.py`).
"""

import abc
import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from fedstack.computations.plan.graph import Function, declared_type
from fedstack.computations.plan.program import Program
from fedstack.computations.plan.tasks import PhaseTask, SelectTask, ServerTask
from fedstack.computations.types.language import Executor, Type, computation_pb2
from fedstack.computations.types.type_structure import contains_federated
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidComputationError, UnsupportedIntrinsicError
from fedstack.executors.base.schedule_run import ScheduleRun, ScheduleValues, no_clients, run_whole
from fedstack.executors.concurrency.leaf_threads import LeafThreads, runs_inline
from fedstack.executors.folds.sinks import Sink
from fedstack.foundations.error_text import name_text

if TYPE_CHECKING:
    from fedstack.executors.base.phase_engine import PhaseEngine

_T = TypeVar("_T")
_VALUES = ("data", "xla", "tensorflow", "literal", "intrinsic")


class FunctionRun(Protocol):
    """One run of a traced function, of the whole result or part by part."""

    async def pull(self, path: tuple[int, ...], argument: object) -> object:
        """Runs what the member of the result that `path` leads to needs and has not run yet; returns its payload.

        Args:
          path: The positions on the way to the member; none for the whole result.
          argument: The payload of the argument. Of a struct, members that this needs none of may be `UNPULLED`.
        """
        ...


class Engine(abc.ABC):
    """Runs traced functions."""

    @property
    @abc.abstractmethod
    def drives_inline(self) -> bool:
        """Whether work here needs no event loop unless it asks for one (`need_event_loop`)."""

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
        """How many clients values have to be for; `None` if this engine does not say."""
        return None

    @property
    def leaf_threads(self) -> LeafThreads | None:
        """The threads of the leaf engine below, for work of our own beside the leaves'."""
        return None

    def accepts(self, computation: computation_pb2.Computation, executor: Executor) -> None:  # noqa: B027
        """Checks that a computation of this kind runs here. By default all do.

        Args:
          computation: The computation.
          executor: The executor that is given it, for the message.

        Raises:
          InvalidComputationError: If not; the message names an executor that takes it.
        """

    @abc.abstractmethod
    def begin(self, function: Function, *, in_parts: bool = False) -> FunctionRun:
        """Begins to run a function.

        Args:
          function: What to run.
          in_parts: Whether members of the result are pulled one by one, so that each is to run what it needs only.
        """

    async def run(self, function: Function, argument: object) -> object:
        """Runs a function and returns the payload of its whole result."""
        return await self.begin(function).pull((), argument)

    def over(self, wrap: "Callable[[ProgramEngine], ProgramEngine]") -> "Engine | None":
        """Returns the engine with something else in place of what runs its programs; `None` if they run elsewhere."""
        return None

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of the given type, where streams of user code may run."""
        return work()


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

        Coroutines use `linked`, which lets it take its time.

        Raises:
          LoadNeeded: If a leaf computation is still to be loaded, and the caller's thread is an event loop's.
          UnsupportedIntrinsicError: If no engine from here down runs one of its intrinsics.
          CarrierError: If a leaf computation cannot be loaded.
        """

    @abc.abstractmethod
    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        """Runs a linked program once: payloads in, payloads out."""

    @abc.abstractmethod
    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        """Runs a linked program once per client and gives what it yields to `sink`, block by block."""

    async def linked(self, program: Program) -> Program:
        """Links a program, on a leaf thread where that loads leaf computations and the caller's thread is a loop's."""
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
    """Raised in place of blocking an event loop: loading may import anything, or compile for seconds.

    Attributes:
      threads: Where to load instead.
    """

    def __init__(self, threads: LeafThreads) -> None:
        super().__init__("Expected `linked` on an event loop, found `link`")
        self.threads = threads


def holds_up_a_loop() -> bool:
    """Returns whether other things wait on an event loop for what the current thread does."""
    if runs_inline():
        return False  # whoever drives this coroutine waits for it anyway
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
