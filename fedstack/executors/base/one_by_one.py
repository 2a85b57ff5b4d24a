"""Drives executors of another origin through the four verbs, one call at a time, so that ours can stand on them."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import attrs

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.computations.plan.graph import declared_type
from fedstack.computations.plan.interpreter import run_once
from fedstack.computations.plan.program import (
    CompositeOperation,
    DataSource,
    IntrinsicSource,
    LeafSource,
    Linking,
    Operation,
    Program,
)
from fedstack.computations.types.language import Executor, FunctionType, RetryableError, Type, computation_pb2
from fedstack.computations.types.type_structure import contains_sequence
from fedstack.computations.values.columns import Column
from fedstack.computations.values.containers import to_elements
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import FedstackError, InvalidComputationError, LeafError, UnsupportedIntrinsicError
from fedstack.executors.base.arithmetic import arithmetic_for
from fedstack.executors.base.client_blocks import ClientBlocks
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.sync_driver import need_event_loop
from fedstack.executors.folds.sinks import Sink
from fedstack.foundations.error_text import with_place

_T = TypeVar("_T")


@attrs.frozen(eq=False)
class _DrivenScope(SystemScope):
    """The loop on which the verbs are driven, while a thread of ours waits for them."""

    loop: asyncio.AbstractEventLoop


class _ForeignLeaf(BoundOperation):
    """A computation embedded in a foreign executor; a thread calls it and waits while the loop drives the verbs."""

    def __init__(
        self,
        executor: Executor,
        computation: computation_pb2.Computation,
        loop: Callable[[], asyncio.AbstractEventLoop | None],
    ) -> None:
        declared = declared_type(computation)
        self.name = computation.WhichOneof("computation") or "computation"
        self.parameter = declared.parameter if isinstance(declared, FunctionType) else None
        self.result: Type = declared.result if isinstance(declared, FunctionType) else declared
        self._type = declared
        self._executor = executor
        self._computation = computation
        self._loop = loop

    def call(self, argument: object, client: int | None = None) -> object:
        # Here, on a thread: it may be a stream, whose elements other calls of this executor make.
        given = None if self.parameter is None else to_elements(argument, self.parameter)
        try:
            driven = current_scope().of(_DrivenScope)
            result = _wait(self._call(given), self._loop() if driven is None else driven.loop)
        except FedstackError as error:
            if client is None or isinstance(error, RetryableError):
                raise
            placed = with_place(error, f"at client {client}")
            if isinstance(placed, LeafError):
                placed.client_index = client
            raise placed from error.__cause__
        return normalize_argument(result, self.result, f"the result of a {self.name}")

    async def _call(self, argument: object) -> object:
        function = await self._executor.create_value(self._computation, self._type)
        if not isinstance(self._type, FunctionType):
            return await function.compute()
        given = None if self.parameter is None else await self._executor.create_value(argument, self.parameter)
        return await (await self._executor.create_call(function, given)).compute()


def _wait(coroutine: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop | None) -> _T:
    if loop is None or loop is _running_loop():
        coroutine.close()
        raise InvalidComputationError("Expected work of another executor on a thread of ours, found it elsewhere")
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class ForeignEngine(ProgramEngine):
    """Runs programs on an executor of another origin.

    Args:
      target: Any executor of the language that takes leaf computations.
    """

    def __init__(self, target: Executor) -> None:
        self._target = target
        self._threads = LeafThreads()
        self._linking = Linking("one by one")
        # Where the verbs are driven: other engines run what is linked here on threads of their own (folds, streams).
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def drives_inline(self) -> bool:
        return False

    def runs_intrinsic(self, uri: str) -> bool:
        return uri.startswith("generic_")

    def link(self, program: Program) -> Program:
        self._loop = _running_loop() or self._loop
        return program.with_operations(self._linking, self._operation)

    def _operation(self, operation: Operation) -> Operation:
        if isinstance(operation, (LeafSource, DataSource)):
            return _ForeignLeaf(self._target, operation.computation, lambda: self._loop)
        if isinstance(operation, IntrinsicSource):
            found = arithmetic_for(operation)
            if found is None:
                above = "SequenceExecutor" if operation.uri.startswith("sequence_") else "FederatingExecutor"
                raise UnsupportedIntrinsicError(
                    f"Expected leaf computations for {self._target!r}, found {operation.uri}; put a {above} above it"
                )
            return found
        return operation.linked(self.link) if isinstance(operation, CompositeOperation) else operation

    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        return await self._on_thread(lambda: run_once(program, inputs))

    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        blocks = ClientBlocks(program, inputs, clients, sink)
        await self._on_thread(lambda: blocks.run(self._threads), lambda: blocks.cancel(self._threads))

    async def _on_thread(self, work: Callable[[], _T], cancel: Callable[[], None] | None = None) -> _T:
        await need_event_loop()
        with current_scope().adding(_DrivenScope(asyncio.get_running_loop())).entered():
            return await self._threads.run(work, cancel)

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        return await self._on_thread(work) if contains_sequence(type_spec) else work()

    def close(self) -> None:
        """Lets the threads end. Idempotent."""
        self._threads.close()


class OneByOneExecutor(VerbExecutor):
    """Lets executors of ours stand on one without an engine, or on one of another origin.

    Args:
      target: The executor below. It is closed with this one.
    """

    def __init__(self, target: Executor) -> None:
        self.foreign = ForeignEngine(target)
        super().__init__(LazyRecorder(self.foreign), self.foreign, target)
        self.target = target

    def __repr__(self) -> str:
        return f"<OneByOneExecutor over {self.target!r}>"


def with_programs(executor: Executor) -> tuple[Executor, ProgramEngine]:
    """Returns an executor that runs programs, and what runs them: itself, or an adapter that drives it one by one."""
    programs = executor.programs if isinstance(executor, VerbExecutor) else None
    if programs is not None:
        return executor, programs
    adapter = OneByOneExecutor(executor)
    return adapter, adapter.foreign
