"""Defines values that are known, or recorded and run when they are pulled, and the recorder that makes them.

A call is a `Frame`: the traced function, its argument, and the results so far. Callers pull the whole result or members
of it; work that two members need runs once. A `ResolvedCall` turns the called computation into a traced function of one
argument, without names, lambdas, and functions in the argument.
"""

from collections.abc import Sequence
from typing import cast

from fedstack.computations.plan.graph import (
    Callee,
    Function,
    Node,
    Pack,
    Parameter,
    Scope,
    Selection,
    Symbol,
    needed_for,
    nodes_of,
    select,
)
from fedstack.computations.plan.plan import plans
from fedstack.computations.plan.symbol_checks import check_result
from fedstack.computations.plan.trace import Tracer
from fedstack.computations.types.language import FunctionType, StructType, Type, computation_pb2
from fedstack.computations.types.type_structure import contains_function, fields_of
from fedstack.errors import ResourceLimitError
from fedstack.executors.base.engines import Engine, FunctionRun
from fedstack.executors.base.schedule_run import UNPULLED
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.base.verb_values import Recorder, Source, VerbValue, function_error
from fedstack.executors.concurrency.coroutines import LazyTask, gather, need_event_loop, owned_by, runs_inline


class ResolvedCall:
    """A call with all names resolved.

    Args:
      computation: The called function, or a computation of a value.
      result: The type of the result.
      argument: The argument, if there are functions in it.

    Attributes:
      function: The traced function.
      members: The members of its parameter; `None` if that is the argument as it is.

    Raises:
      InvalidComputationError: If the computation is malformed.
      TypeMismatchError: If functions in the argument do not fit.
    """

    def __init__(self, computation: computation_pb2.Computation, result: Type, argument: "LazyValue | None") -> None:
        self.members: list[LazyValue] | None = None
        if argument is None:
            self.function = plans.plan(computation)
        else:
            self.members = []
            self.function = _traced(computation, result, argument, self.members)

    def reads(self, path: Sequence[int]) -> set[int] | None:
        """Returns the positions of the parameter that a member of the result needs; `None` for the parameter whole."""
        symbol, parameter = self.function.result, self.function.parameter
        for position in path:
            if symbol is parameter:
                return {position}
            if not isinstance(symbol, Pack):
                break  # the node has to run, whichever member of its result is wanted
            symbol = symbol.members[position]
        wanted: set[int] = set()
        for node in needed_for(symbol, self.function.nodes):
            if isinstance(node, Selection) and node.source is parameter:
                wanted.add(node.position)
            elif any(leaf is parameter for operand in node.operands() for leaf in nodes_of(operand)):
                return None
        return None if any(leaf is parameter for leaf in nodes_of(symbol)) else wanted


def _traced(
    computation: computation_pb2.Computation, result: Type, argument: "LazyValue", free: "list[LazyValue]"
) -> Function:
    """Traces a call whose argument has functions in it; the data among them become members of one parameter."""
    placeholders = argument.symbol(Scope(), free)
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
        traced = Tracer().apply(Callee(computation), rebuild(placeholders), scope)
        check_result(traced, result)
    except RecursionError:
        raise ResourceLimitError("Expected functions that call each other less deeply, found Python's limit") from None
    return Function(scope, parameter, traced)


# The most values that are pulled side by side.
_AT_ONCE = 1000


class LazyValue(VerbValue):
    """A value that is known, or recorded and not yet run."""

    __slots__ = ()

    @property
    def is_known(self) -> bool:
        """Whether its payload is known without running anything."""
        return False

    def member(self, position: int, type_spec: Type) -> "LazyValue":
        """Returns the member of a struct value, without running anything."""
        raise NotImplementedError

    def symbol(self, scope: Scope, free: "list[LazyValue]") -> Symbol:
        """Returns a symbol for the value; if it is data, it is added to `free`."""
        free.append(self)
        return Parameter(self._type, scope)


class KnownValue(LazyValue):
    """A value with a known payload."""

    __slots__ = ("payload",)

    def __init__(self, executor: VerbExecutor, type_spec: Type, payload: object) -> None:
        super().__init__(executor, type_spec)
        self.payload = payload

    @property
    def is_known(self) -> bool:
        return True

    async def pull(self) -> object:
        self._executor.check_open()
        return self.payload

    def member(self, position: int, type_spec: Type) -> LazyValue:
        return KnownValue(self._executor, type_spec, cast("tuple[object, ...]", self.payload)[position])


class FunctionValue(LazyValue):
    """A computation that is not called yet."""

    __slots__ = ("_source", "computation")

    def __init__(
        self, executor: VerbExecutor, type_spec: Type, computation: computation_pb2.Computation, source: Source
    ) -> None:
        super().__init__(executor, type_spec)
        self.computation = computation
        self._source = source  # a Python function lives as long as the computation object made of it

    async def pull(self) -> object:
        raise function_error(self._type)

    def symbol(self, scope: Scope, free: "list[LazyValue]") -> Symbol:
        return Callee(self.computation)


class StructValue(LazyValue):
    """A struct of other values."""

    __slots__ = ("_is_known", "_pulled", "members")

    def __init__(self, executor: VerbExecutor, type_spec: Type, members: Sequence[LazyValue]) -> None:
        super().__init__(executor, type_spec)
        self.members = members
        self._pulled: LazyTask[object] | None = None
        self._is_known = False

    @property
    def is_known(self) -> bool:
        # Kept once true: many structs may share members; see `pull`.
        self._is_known = self._is_known or all(member.is_known for member in self.members)
        return self._is_known

    async def pull(self) -> object:
        # Once: structs may share members, level by level, so that there are many more paths than members.
        self._executor.check_open()
        if self._pulled is None:
            self._pulled = LazyTask(lambda: pull_side_by_side(self.members))
        return await self._pulled.get()

    def member(self, position: int, type_spec: Type) -> LazyValue:
        return self.members[position]

    def symbol(self, scope: Scope, free: "list[LazyValue]") -> Symbol:
        names = tuple(name for name, _ in fields_of(cast(StructType, self._type)))
        return Pack(names, tuple(member.symbol(scope, free) for member in self.members))


class CallValue(LazyValue):
    """The result of a call, or a member of it."""

    __slots__ = ("_frame", "_path")

    def __init__(self, executor: VerbExecutor, type_spec: Type, frame: "Frame", path: tuple[int, ...] = ()) -> None:
        super().__init__(executor, type_spec)
        self._frame = frame
        self._path = path

    @property
    def is_known(self) -> bool:
        return self._frame.has_run

    async def pull(self) -> object:
        self._executor.check_open()
        return await self._frame.pull(self._path)

    def member(self, position: int, type_spec: Type) -> LazyValue:
        return CallValue(self._executor, type_spec, self._frame, (*self._path, position))


class Frame:
    """One call, and its results so far.

    Args:
      engine: Runs the call.
      call: The resolved call.
      argument: The value of the function's parameter.
      called: The values of the call, kept until it has run.
    """

    def __init__(self, engine: Engine, call: ResolvedCall, argument: LazyValue | None, called: object) -> None:
        self._called = called
        self._engine = engine
        self._call = call
        self._argument = argument
        owner = owned_by(self)
        self._whole: LazyTask[object] = LazyTask(lambda: owner()._run(()))
        self._parts: dict[tuple[int, ...], LazyTask[object]] = {}
        self._run_in_parts: FunctionRun | None = None

    @property
    def has_run(self) -> bool:
        """Whether all of it has run."""
        return self._whole.done

    async def pull(self, path: tuple[int, ...]) -> object:
        """Returns the result, or the member of it that `path` leads to, and runs only the work that this needs."""
        if not path or self._whole.done:
            value = await self._whole.get()
            self._let_go()
            for position in path:
                value = cast("tuple[object, ...]", value)[position]
            return value
        part = self._parts.get(path)
        if part is None:
            owner = owned_by(self)
            part = self._parts[path] = LazyTask(lambda: owner()._run(path))
        return await part.get()

    def _let_go(self) -> None:
        """Drops the inputs once there is a result: in a chain of calls, each would keep the one before."""
        if self._whole.has_value:
            self._argument = self._called = self._call.members = self._run_in_parts = None
            self._parts.clear()

    async def _run(self, path: tuple[int, ...]) -> object:
        argument = await self._pull_argument(path)
        # Parts share one run, so that work that two of them need runs once.
        run = self._run_in_parts
        if run is None:
            if not path:
                return await self._engine.run(self._call.function, argument)
            run = self._run_in_parts = self._engine.begin(self._call.function, in_parts=True)
        return await run.pull(path, argument)

    async def _pull_argument(self, path: tuple[int, ...]) -> object:
        """Pulls the members of the argument that the function uses for a part of its result."""
        argument = self._argument
        if argument is None:
            return None
        wanted = self._call.reads(path) if isinstance(argument, StructValue) else None
        if wanted is None or not isinstance(argument, StructValue):
            return await argument.pull()
        members = [member for index, member in enumerate(argument.members) if index in wanted]
        payloads = iter(await pull_side_by_side(members))
        return tuple(next(payloads) if index in wanted else UNPULLED for index in range(len(argument.members)))


async def pull_side_by_side(values: Sequence[LazyValue]) -> tuple[object, ...]:
    """Pulls several values, each once even if it comes twice, on a loop if more than one of them has to run."""
    distinct = list(dict.fromkeys(values))
    # Known values need no task; of the others there may be any number.
    running = [value for value in distinct if not value.is_known]
    if sum(isinstance(value, CallValue) for value in running) > 1 and runs_inline():
        await need_event_loop()
    payloads: dict[LazyValue, object] = {}
    if len(running) <= 1 or runs_inline():
        for value in running:
            payloads[value] = await value.pull()
    else:
        for first in range(0, len(running), _AT_ONCE):
            some = running[first : first + _AT_ONCE]
            payloads.update(zip(some, await gather([value.pull() for value in some])))
    for value in distinct:
        if value not in payloads:
            payloads[value] = await value.pull()
    return tuple([payloads[value] for value in values])


class LazyRecorder(Recorder[LazyValue]):
    """Records values as nodes that an engine runs once, when they are pulled.

    Args:
      engine: Runs the nodes.
    """

    waits = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def known_clients(self) -> int | None:
        return self._engine.known_clients

    async def known(self, owner: VerbExecutor, payload: object, type_spec: Type) -> LazyValue:
        return KnownValue(owner, type_spec, payload)

    async def computation(
        self, owner: VerbExecutor, message: computation_pb2.Computation, type_spec: Type, source: Source
    ) -> LazyValue:
        if isinstance(type_spec, FunctionType):
            return FunctionValue(owner, type_spec, message, source)
        return CallValue(owner, type_spec, Frame(self._engine, ResolvedCall(message, type_spec, None), None, None))

    async def call(
        self, owner: VerbExecutor, function: LazyValue, argument: LazyValue | None, type_spec: Type
    ) -> LazyValue:
        called = cast(FunctionValue, function)
        parameter = cast(FunctionType, called.type_signature).parameter
        takes_functions = parameter is not None and contains_function(parameter)
        call = ResolvedCall(called.computation, type_spec, argument if takes_functions else None)
        given = argument
        if call.members is not None:
            types = StructType([value.type_signature for value in call.members])
            given = StructValue(owner, types, call.members)
        return CallValue(owner, type_spec, Frame(self._engine, call, given, (function, argument)))

    async def struct(
        self, owner: VerbExecutor, names: Sequence[str | None], members: Sequence[LazyValue], type_spec: Type
    ) -> LazyValue:
        return StructValue(owner, type_spec, members)

    async def selection(self, owner: VerbExecutor, source: LazyValue, index: int, type_spec: Type) -> LazyValue:
        return source.member(index, type_spec)
