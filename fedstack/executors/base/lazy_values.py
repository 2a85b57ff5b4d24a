"""Defines lazy values, which are either known or computed when they are pulled, and the recorder that creates them.

A call is represented by a `Frame`, which contains the traced function, its argument and the results so far. Callers
pull the whole result or individual members; work that several members need runs only once. A `ResolvedCall` contains
the called computation as a traced function of one argument, in which all names, lambdas and functional arguments are
resolved.
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
    """A call in which all names are resolved.

    Args:
      computation: The called function, or a computation of a value.
      result: The type of the result.
      argument: The argument if it contains functions; otherwise `None`.

    Attributes:
      function: The traced function.
      members: The members of the parameter of `function`; `None` if the parameter is the unchanged argument.

    Raises:
      InvalidComputationError: If the computation is malformed.
      TypeMismatchError: If a function in the argument has the wrong type.
    """

    def __init__(self, computation: computation_pb2.Computation, result: Type, argument: "LazyValue | None") -> None:
        self.members: list[LazyValue] | None = None
        if argument is None:
            self.function = plans.plan(computation)
        else:
            self.members = []
            self.function = _traced(computation, result, argument, self.members)

    def reads(self, path: Sequence[int]) -> set[int] | None:
        """Returns the positions of the parameter members that a member of the result needs.

        Args:
          path: The positions that lead to the member of the result.

        Returns:
          The positions; `None` if the whole parameter is needed.
        """
        symbol, parameter = self.function.result, self.function.parameter
        for position in path:
            if symbol is parameter:
                return {position}
            if not isinstance(symbol, Pack):
                break  # the node has to run, whichever member of its result is needed
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
    """Returns the traced function of a call whose argument contains functions.

    The parts of the argument that are not functions become the members of a single parameter, and are added to `free`.
    """
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
        raise ResourceLimitError(
            "Function calls are nested more deeply than Python's recursion limit allows; nest fewer calls"
        ) from None
    return Function(scope, parameter, traced)


# The maximum number of values that are pulled concurrently.
_AT_ONCE = 1000


class LazyValue(VerbValue):
    """A value that is either known or recorded and computed on demand."""

    __slots__ = ()

    @property
    def is_known(self) -> bool:
        """Whether the payload is known without running any work."""
        return False

    def member(self, position: int, type_spec: Type) -> "LazyValue":
        """Returns a member of a struct value without running any work."""
        raise NotImplementedError

    def symbol(self, scope: Scope, free: "list[LazyValue]") -> Symbol:
        """Returns a symbol for the value. A value that is not a function is also appended to `free`."""
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
    """A function that has not been called."""

    __slots__ = ("_source", "computation")

    def __init__(
        self, executor: VerbExecutor, type_spec: Type, computation: computation_pb2.Computation, source: Source
    ) -> None:
        super().__init__(executor, type_spec)
        self.computation = computation
        self._source = source  # keeps the computation object alive, and with it the Python function

    async def pull(self) -> object:
        raise function_error(self._type)

    def symbol(self, scope: Scope, free: "list[LazyValue]") -> Symbol:
        return Callee(self.computation)


class StructValue(LazyValue):
    """A struct of lazy values."""

    __slots__ = ("_is_known", "_pulled", "members")

    def __init__(self, executor: VerbExecutor, type_spec: Type, members: Sequence[LazyValue]) -> None:
        super().__init__(executor, type_spec)
        self.members = members
        self._pulled: LazyTask[object] | None = None
        self._is_known = False

    @property
    def is_known(self) -> bool:
        # Once true, the answer is kept, because many structs may share members; see `pull`.
        self._is_known = self._is_known or all(member.is_known for member in self.members)
        return self._is_known

    async def pull(self) -> object:
        # The struct is pulled only once. Structs may share members on each level, so the number of paths to a member
        # can be much larger than the number of members.
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
    """The result of a call, or a member of the result."""

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
    """A single call and its results so far.

    Args:
      engine: Runs the call.
      call: The resolved call.
      argument: The value of the function's parameter.
      called: The values from which the call was created, which are kept alive until the call has run.
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
        """Whether the whole call has run."""
        return self._whole.done

    async def pull(self, path: tuple[int, ...]) -> object:
        """Runs the work needed for the result or for one of its members, and returns the payload.

        Args:
          path: The positions that lead to the member; empty for the whole result.
        """
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
        """Drops the inputs once the result is known; otherwise, each call in a chain would retain the previous call."""
        if self._whole.has_value:
            self._argument = self._called = self._call.members = self._run_in_parts = None
            self._parts.clear()

    async def _run(self, path: tuple[int, ...]) -> object:
        argument = await self._pull_argument(path)
        # All parts share one run, so that work that several parts need runs only once.
        run = self._run_in_parts
        if run is None:
            if not path:
                return await self._engine.run(self._call.function, argument)
            run = self._run_in_parts = self._engine.begin(self._call.function, in_parts=True)
        return await run.pull(path, argument)

    async def _pull_argument(self, path: tuple[int, ...]) -> object:
        """Returns the payload of the argument, with the members that the given part of the result needs."""
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
    """Returns the payloads of several values, and pulls each distinct value only once.

    If more than one call has to run, the calls run concurrently on an event loop.
    """
    distinct = list(dict.fromkeys(values))
    # Only values that are not yet known need a task.
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
    """Records values, which an engine computes once, when they are pulled.

    Args:
      engine: Computes the values.
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
