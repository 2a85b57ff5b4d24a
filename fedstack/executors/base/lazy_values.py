"""Defines the values of fedstack's executors: known, or recorded and run when somebody pulls.

A call is a `Frame`: the traced function, what it is called with, and what has been run of it. The whole result may be
pulled or members of it; what two members need runs once.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

from fedstack.computations.plan.graph import (
    Callee,
    Function,
    Node,
    Pack,
    Parameter,
    Scope,
    Selection,
    Symbol,
    nodes_of,
    select,
)
from fedstack.computations.plan.trace import Tracer, check_result
from fedstack.computations.types.language import ExecutorValue, FunctionType, StructType, Type, computation_pb2
from fedstack.computations.types.traceback_filter import without_own_frames
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.containers import to_structure
from fedstack.errors import FedstackError, ResourceLimitError, TypeMismatchError
from fedstack.executors.concurrency.lazy_task import LazyTask, owned_by

_T = TypeVar("_T")

# Stands for a member of an argument that has not been pulled, because nothing that runs reads it.
UNPULLED = object()


class ValueHost(Protocol):
    """What a value asks of the executor that made it."""

    def check_open(self) -> None:
        """Raises `ClosedError` after `close()`."""
        ...

    def observe(self, payload: object) -> None:
        """Hears of each payload that `compute()` returns."""
        ...

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of the given type, where streams of user code may run."""
        ...

    async def pull_all(self, values: "Sequence[LazyValue]") -> tuple[object, ...]:
        """Pulls several values, side by side."""
        ...

    async def evaluate(self, function: Function, argument: object) -> object:
        """Runs a traced function on the payload of its argument and returns the payload of its result."""
        ...

    def start_parts(self, function: Function) -> object:
        """Begins to run a function part by part; what it returns goes to `evaluate_part`."""
        ...

    async def evaluate_part(self, session: object, path: tuple[int, ...], argument: object) -> object:
        """Runs what a member of the result needs that has not run yet, and returns its payload."""
        ...


class LazyValue(ExecutorValue):
    """A value of one of fedstack's executors: known, or recorded and not yet run."""

    __slots__ = ("_executor", "_type")

    def __init__(self, executor: "ValueHost", type_spec: Type) -> None:
        self._executor = executor
        self._type = type_spec

    @property
    def type_signature(self) -> Type:
        return self._type

    @property
    def executor(self) -> "ValueHost":
        """The executor that made the value."""
        return self._executor

    @property
    def reference(self) -> object:
        return self

    async def compute(self) -> object:
        """Runs what the value needs and returns it, in the form that the language's `ExecutorValue` promises.

        Raises:
          TypeMismatchError: If the value is a function.
        """
        try:
            payload = await self.pull()
            self._executor.observe(payload)
            return await self._executor.finish(lambda: to_structure(payload, self._type), self._type)
        except (FedstackError, asyncio.CancelledError) as error:
            raise without_own_frames(error).with_traceback(None) from error.__cause__

    async def pull(self) -> object:
        """Runs what the value needs and returns its payload."""
        raise NotImplementedError

    def member(self, position: int, type_spec: Type) -> "LazyValue":
        """Returns the member of a struct value, without running anything."""
        raise NotImplementedError

    def symbol(self, scope: Scope, free: "list[LazyValue]") -> Symbol:
        """Returns a symbol for the value; where it is data, a new entry of `free` stands behind it."""
        free.append(self)
        return Parameter(self._type, scope)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of type {self._type}>"


class KnownValue(LazyValue):
    """A value whose payload is there."""

    __slots__ = ("payload",)

    def __init__(self, executor: "ValueHost", type_spec: Type, payload: object) -> None:
        super().__init__(executor, type_spec)
        self.payload = payload

    async def pull(self) -> object:
        self._executor.check_open()
        return self.payload

    def member(self, position: int, type_spec: Type) -> LazyValue:
        return KnownValue(self._executor, type_spec, cast("tuple[object, ...]", self.payload)[position])


class FunctionValue(LazyValue):
    """A computation that is not called yet."""

    __slots__ = ("computation", "source")

    def __init__(self, executor: "ValueHost", type_spec: Type, computation: computation_pb2.Computation) -> None:
        super().__init__(executor, type_spec)
        self.computation = computation
        self.source: object = None  # a Python function lives as long as the computation object made of it

    async def pull(self) -> object:
        raise TypeMismatchError(f"Expected a value to compute, found a function of type {self._type}; call it first")

    def symbol(self, scope: Scope, free: list[LazyValue]) -> Symbol:
        return Callee(self.computation)


class StructValue(LazyValue):
    """A struct put together out of other values."""

    __slots__ = ("_pulled", "members")

    def __init__(self, executor: "ValueHost", type_spec: Type, members: Sequence[LazyValue]) -> None:
        super().__init__(executor, type_spec)
        self.members = members
        self._pulled: LazyTask[object] | None = None

    async def pull(self) -> object:
        # Once: structs may share members, level by level, and then there are many more ways through them than members.
        self._executor.check_open()
        if self._pulled is None:
            self._pulled = LazyTask(lambda: self._executor.pull_all(self.members))
        return await self._pulled.get()

    def member(self, position: int, type_spec: Type) -> LazyValue:
        return self.members[position]

    def symbol(self, scope: Scope, free: list[LazyValue]) -> Symbol:
        names = tuple(name for name, _ in fields_of(cast(StructType, self._type)))
        return Pack(names, tuple(member.symbol(scope, free) for member in self.members))


class CallValue(LazyValue):
    """The result of a call, or a member of it."""

    __slots__ = ("_frame", "_path")

    def __init__(self, executor: "ValueHost", type_spec: Type, frame: "Frame", path: tuple[int, ...] = ()) -> None:
        super().__init__(executor, type_spec)
        self._frame = frame
        self._path = path

    async def pull(self) -> object:
        return await self._frame.pull(self._path)

    def member(self, position: int, type_spec: Type) -> LazyValue:
        return CallValue(self._executor, type_spec, self._frame, (*self._path, position))


class Frame:
    """One call: the traced function, what it is called with, and what has been run of it."""

    def __init__(
        self, executor: "ValueHost", function: Function, argument: LazyValue | None, called: object = None
    ) -> None:
        self._called = called  # the values that were called, kept for as long as they may have to run
        self._executor = executor
        self._function = function
        self._argument = argument
        owner = owned_by(self)
        self._whole: LazyTask[object] = LazyTask(lambda: owner()._run())
        self._parts: dict[tuple[int, ...], LazyTask[object]] = {}
        self._session: object = None

    async def pull(self, path: tuple[int, ...]) -> object:
        """Returns the result, or the member of it that `path` leads to, running only what that needs."""
        self._executor.check_open()
        if not path or self._whole.done:
            value = await self._whole.get()
            for position in path:
                value = cast("tuple[object, ...]", value)[position]
            return value
        part = self._parts.get(path)
        if part is None:
            owner = owned_by(self)
            part = self._parts[path] = LazyTask(lambda: owner()._run_part(path))
        return await part.get()

    async def _run(self) -> object:
        if self._session is not None:
            return await self._executor.evaluate_part(self._session, (), await self._pull_argument(None))
        return await self._executor.evaluate(self._function, await self._pull_argument(None))

    async def _run_part(self, path: tuple[int, ...]) -> object:
        # Parts share one session, so that what two of them need runs once.
        if self._session is None:
            self._session = self._executor.start_parts(self._function)
        symbol = self._function.result
        for position in path:
            symbol = select(symbol, position)
        return await self._executor.evaluate_part(self._session, path, await self._pull_argument(symbol))

    async def _pull_argument(self, symbol: Symbol | None) -> object:
        """Pulls the members of the argument that the function uses (for one part of its result, if given)."""
        argument = self._argument
        if argument is None:
            return None
        if not isinstance(argument, StructValue):
            return await argument.pull()
        wanted = used_members(self._function, symbol)
        if wanted is None:
            return await argument.pull()
        members = [member for index, member in enumerate(argument.members) if index in wanted]
        payloads = iter(await self._executor.pull_all(members))
        return tuple(next(payloads) if index in wanted else UNPULLED for index in range(len(argument.members)))


def used_members(function: Function, symbol: Symbol | None = None) -> set[int] | None:
    """Returns the positions of the parameter that a function reads, or `None` if it reads the parameter as a whole."""
    parameter = function.parameter
    nodes = function.nodes
    result = function.result
    if symbol is not None:
        narrowed = Function(parameter.scope, parameter, symbol) if parameter else function
        nodes, result = narrowed.nodes, symbol
    wanted: set[int] = set()
    for node in nodes:
        if isinstance(node, Selection) and node.source is parameter:
            wanted.add(node.position)
        elif any(leaf is parameter for operand in node.operands() for leaf in nodes_of(operand)):
            return None
    return None if any(leaf is parameter for leaf in nodes_of(result)) else wanted


def trace_call(function: FunctionValue, argument: LazyValue) -> tuple[Function, list[LazyValue]]:
    """Traces a call whose argument has functions in it; the data in it become members of one parameter."""
    outer = Scope()
    free: list[LazyValue] = []
    placeholders = argument.symbol(outer, free)
    scope = Scope()
    parameter = Parameter(StructType([value.type_signature for value in free]), scope)
    members = iter([select(parameter, position) for position in range(len(free))])

    def rebuild(symbol: Symbol) -> Symbol:
        if isinstance(symbol, Node):
            return next(members)
        if isinstance(symbol, Pack):
            return Pack(symbol.names, tuple(rebuild(member) for member in symbol.members))
        return symbol

    try:
        result = Tracer().apply(Callee(function.computation), rebuild(placeholders), scope)
        check_result(result, cast(FunctionType, function.type_signature).result)
    except RecursionError:
        raise ResourceLimitError("Expected functions that call each other less deeply, found Python's limit") from None
    return Function(scope, parameter, result), free
