"""Drives executors that have no engine through the four verbs of the language's `Executor`.

A `ForeignEngine` runs programs by calling one leaf at a time, so that fedstack's executors can wrap an executor that is
not part of fedstack. A `VerbEngine` runs whole functions, including their placements. It resolves names, lambdas and
blocks. Each remaining call of an intrinsic or a leaf function, each selection and each struct becomes one verb call.
Functions that are arguments of an intrinsic are sent as computations.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

import attrs

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.portability import free_references
from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.computations.plan.graph import Function, declared_type
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
from fedstack.computations.plan.render import function_of, reference, render, selection
from fedstack.computations.types.language import (
    Executor,
    ExecutorValue,
    FunctionType,
    RetryableError,
    Struct,
    StructType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_structure import contains_sequence, fields_of, type_from_proto
from fedstack.computations.values.columns import Column
from fedstack.computations.values.containers import to_elements
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import FedstackError, InvalidComputationError, LeafError, UnsupportedIntrinsicError
from fedstack.executors.base.client_blocks import ClientBlocks
from fedstack.executors.base.engines import Engine, FunctionRun, ProgramEngine, arithmetic_for
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.base.schedule_run import merged_argument
from fedstack.executors.base.verb_executor import VerbExecutor, create_known, known_clients_of, pull
from fedstack.executors.concurrency.coroutines import LazyTask, need_event_loop, owned_by
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.foundations.error_text import with_place

_T = TypeVar("_T")


@attrs.frozen(eq=False)
class _DrivenScope(SystemScope):
    """A scope with an event loop, which drives an executor's verbs while a thread of fedstack waits."""

    loop: asyncio.AbstractEventLoop


class _ForeignLeaf(BoundOperation):
    """A computation that runs in an executor without an engine.

    The calling thread waits while the event loop drives the verbs of the executor.
    """

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
        # The argument is converted on this thread, because it may be a stream whose elements need further calls of this
        # executor.
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
        raise InvalidComputationError(
            "Expected the work of an executor without an engine to run on a fedstack thread while an event loop drives "
            "the executor's verbs, found it running on the event loop's thread or without an event loop"
        )
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class ForeignEngine(ProgramEngine):
    """Runs programs on an executor that has no engine.

    Args:
      target: Any executor of the language that accepts leaf computations.
    """

    def __init__(self, target: Executor) -> None:
        self._target = target
        self._threads = LeafThreads()
        self._linking = Linking("one by one")
        # The loop that drives the verbs when other engines run linked programs (folds, streams) on their own threads.
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
                    f"Expected only leaf computations for {self._target!r}, found the intrinsic {operation.uri}; wrap "
                    f"this executor in a {above}"
                )
            return found
        return operation.linked(self.link) if isinstance(operation, CompositeOperation) else operation

    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        stops: list[object] = []
        return await self._on_thread(lambda: run_once(program, inputs, stops), lambda: stops.append(True))

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
        """Stops the engine's threads. Idempotent."""
        self._threads.close()


class OneByOneExecutor(VerbExecutor):
    """Adds a program engine to an executor that has none.

    Args:
      target: The executor below. It is closed with this executor.
    """

    def __init__(self, target: Executor) -> None:
        self.foreign = ForeignEngine(target)
        super().__init__(LazyRecorder(self.foreign), self.foreign, target)
        self.target = target

    def __repr__(self) -> str:
        return f"<OneByOneExecutor over {self.target!r}>"


def with_programs(executor: Executor) -> tuple[Executor, ProgramEngine]:
    """Returns an executor that runs programs, and its program engine.

    The given executor is returned if it runs programs, otherwise an adapter that calls its verbs.
    """
    programs = executor.programs if isinstance(executor, VerbExecutor) else None
    if programs is not None:
        return executor, programs
    adapter = OneByOneExecutor(executor)
    return adapter, adapter.foreign


Computation = computation_pb2.Computation
_LEAVES = ("data", "xla", "tensorflow")


class VerbEngine(Engine):
    """Runs functions through the verbs of an executor that has no engine.

    Args:
      target: The executor.
    """

    def __init__(self, target: Executor) -> None:
        self._target = target

    @property
    def drives_inline(self) -> bool:
        return False

    @property
    def known_clients(self) -> int | None:
        return known_clients_of(self._target)

    def begin(self, function: Function, *, in_parts: bool = False) -> FunctionRun:
        return VerbRun(self._target, function)


class VerbRun:
    """A single run of a function, whose values the target creates on first use.

    Args:
      target: The executor that creates the values.
      function: The function.
    """

    def __init__(self, target: Executor, function: Function) -> None:
        rendered = getattr(render(function), "lambda")  # a reserved word in Python
        body: Computation = rendered.result
        self._target = target
        self._parameter: str = rendered.parameter_name
        self._parameter_type = None if function.parameter is None else function.parameter.type
        self._argument: object = None
        self._locals = {local.name: local.value for local in body.block.local}
        self._result = body.block.result if body.HasField("block") else body
        self._made: dict[object, LazyTask[ExecutorValue]] = {}

    async def pull(self, path: tuple[int, ...], argument: object) -> object:
        """See `FunctionRun`."""
        self._argument = merged_argument(self._argument, argument)
        result = self._result
        for position in path:
            result = selection(result, position)
        return await pull(await self._value(result))

    async def _value(self, expression: Computation) -> ExecutorValue:
        """Returns the target's value for an expression over the function's parameter and locals."""
        kind = expression.WhichOneof("computation")
        if (path := self._argument_path(expression)) is not None:
            return await self._once(("argument", *path), expression)
        if kind == "reference":
            name = expression.reference.name
            return await self._once(name, self._locals[name])
        if kind == "selection":
            source = await self._value(expression.selection.source)
            return await self._target.create_selection(source, expression.selection.index)
        if kind == "struct":
            elements = expression.struct.element
            return await self._struct([(element.name or None, element.value) for element in elements])
        if kind == "call":
            return await self._call(expression)
        return await self._target.create_value(simplest(expression), type_from_proto(expression.type))

    async def _once(self, key: object, expression: Computation) -> ExecutorValue:
        task = self._made.get(key)
        if task is None:
            owner = owned_by(self)
            task = self._made[key] = LazyTask(lambda: owner()._make(key, expression))
        return await task.get()

    async def _make(self, key: object, expression: Computation) -> ExecutorValue:
        if not isinstance(key, tuple):
            return await self._value(expression)
        payload, type_spec = self._argument, cast(Type, self._parameter_type)
        for position in cast("tuple[int, ...]", key[1:]):
            payload = cast("tuple[object, ...]", payload)[position]
            type_spec = fields_of(cast(StructType, type_spec))[position][1]
        return await create_known(self._target, payload, type_spec)

    def _argument_path(self, expression: Computation) -> tuple[int, ...] | None:
        """Returns the path to the member of the parameter that an expression selects; `None` for other expressions."""
        path: list[int] = []
        while expression.HasField("selection"):
            path.append(expression.selection.index)
            expression = expression.selection.source
        if not expression.HasField("reference") or expression.reference.name != self._parameter:
            return None
        return tuple(reversed(path))

    async def _struct(self, members: Sequence[tuple[str | None, Computation]]) -> ExecutorValue:
        return await self._target.create_struct(Struct([(name, await self._value(value)) for name, value in members]))

    async def _call(self, expression: Computation) -> ExecutorValue:
        function, argument = expression.call.function, expression.call.argument
        members = [element.value for element in argument.struct.element]
        if any(member.HasField("lambda") and free_references(member) for member in members):
            # Functions over the elements of a sequence may refer to names of the enclosing function. The values of
            # these names are passed as an argument.
            names = sorted(free_references(expression))
            references = [reference(name, self._type_of(name)) for name in names]
            types = StructType([type_from_proto(found.type) for found in references])
            whole = reference("captured", types)
            locals_ = [
                computation_pb2.Block.Local(name=name, value=selection(whole, index))
                for index, name in enumerate(names)
            ]
            block = computation_pb2.Block(local=locals_, result=expression)
            function = function_of("captured", types, Computation(type=expression.type, block=block))
            given = await self._struct([(None, found) for found in references])
        else:
            given = await self._value(argument) if expression.call.HasField("argument") else None
        called = await self._target.create_value(function, type_from_proto(function.type))
        return await self._target.create_call(called, given)

    def _type_of(self, name: str) -> Type:
        if name == self._parameter:
            return cast(Type, self._parameter_type)
        return type_from_proto(self._locals[name].type)


def simplest(computation: Computation) -> Computation:
    """Returns the leaf if a computation only calls this leaf, otherwise the computation itself.

    Not all executors accept lambdas.
    """
    if not computation.HasField("lambda"):
        return computation
    function = getattr(computation, "lambda")
    block = function.result.block
    if len(block.local) != 1 or block.result.reference.name != block.local[0].name:
        return computation
    call = block.local[0].value.call
    called = call.function
    takes_all = not called.type.function.HasField("parameter") or (
        call.argument.reference.name == function.parameter_name != "" and called.type == computation.type
    )
    return called if called.WhichOneof("computation") in _LEAVES and takes_all else computation
