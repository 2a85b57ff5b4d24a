"""Defines values that are known, or recorded and run when somebody pulls, and the recorder that makes them.

A call is a `Frame`: the traced function, what it is called with, and what has been run of it. The whole result may be
pulled or members of it; what two members need runs once.
"""

from collections.abc import Sequence
from typing import cast

from fedstack.computations.plan.graph import Callee, Pack, Parameter, Scope, Symbol
from fedstack.computations.types.language import FunctionType, StructType, Type, computation_pb2
from fedstack.computations.types.type_structure import contains_function, fields_of
from fedstack.executors.base.engines import Engine, FunctionRun
from fedstack.executors.base.resolver import ResolvedCall
from fedstack.executors.base.schedule_run import UNPULLED
from fedstack.executors.base.verb_values import Recorder, Source, ValueOwner, VerbValue, function_error
from fedstack.executors.concurrency.lazy_task import LazyTask, owned_by
from fedstack.executors.concurrency.leaf_threads import runs_inline
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.executors.concurrency.sync_driver import need_event_loop

# So many values are pulled side by side.
_AT_ONCE = 1000


class LazyValue(VerbValue):
    """A value that is known, or recorded and not yet run."""

    __slots__ = ()

    @property
    def is_known(self) -> bool:
        """Whether nothing has to run for its payload any more."""
        return False

    def member(self, position: int, type_spec: Type) -> "LazyValue":
        """Returns the member of a struct value, without running anything."""
        raise NotImplementedError

    def symbol(self, scope: Scope, free: "list[LazyValue]") -> Symbol:
        """Returns a symbol for the value; where it is data, a new entry of `free` stands behind it."""
        free.append(self)
        return Parameter(self._type, scope)


class KnownValue(LazyValue):
    """A value whose payload is there."""

    __slots__ = ("payload",)

    def __init__(self, executor: ValueOwner, type_spec: Type, payload: object) -> None:
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
        self, executor: ValueOwner, type_spec: Type, computation: computation_pb2.Computation, source: Source
    ) -> None:
        super().__init__(executor, type_spec)
        self.computation = computation
        self._source = source  # a Python function lives as long as the computation object made of it

    async def pull(self) -> object:
        raise function_error(self._type)

    def symbol(self, scope: Scope, free: "list[LazyValue]") -> Symbol:
        return Callee(self.computation)


class StructValue(LazyValue):
    """A struct put together out of other values."""

    __slots__ = ("_is_known", "_pulled", "members")

    def __init__(self, executor: ValueOwner, type_spec: Type, members: Sequence[LazyValue]) -> None:
        super().__init__(executor, type_spec)
        self.members = members
        self._pulled: LazyTask[object] | None = None
        self._is_known = False

    @property
    def is_known(self) -> bool:
        # It stays so, and is asked of many structs that share members; see `pull`.
        self._is_known = self._is_known or all(member.is_known for member in self.members)
        return self._is_known

    async def pull(self) -> object:
        # Once: structs may share members, level by level, and then there are many more ways through them than members.
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

    def __init__(self, executor: ValueOwner, type_spec: Type, frame: "Frame", path: tuple[int, ...] = ()) -> None:
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
    """One call, and what has been run of it.

    Args:
      engine: Runs it.
      call: What is called.
      argument: The value of the function's parameter.
      called: The values that were called, kept for as long as they have to run.
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
        """Returns the result, or the member of it that `path` leads to, running only what that needs."""
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
        """Drops what it takes to run, once there is a result: of a chain of calls each would keep the one before."""
        if self._whole.has_value:
            self._argument = self._called = self._call.members = self._run_in_parts = None
            self._parts.clear()

    async def _run(self, path: tuple[int, ...]) -> object:
        argument = await self._pull_argument(path)
        # Parts share one run, so that what two of them need runs once.
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
    """Pulls several values, each once however often it comes, on a loop if more than one of them has to run."""
    distinct = list(dict.fromkeys(values))
    # What is known needs no task; of the others there may be any number.
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
    """Records values as nodes that an engine runs once, when somebody pulls.

    Args:
      engine: Runs them.
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

    async def known(self, owner: ValueOwner, payload: object, type_spec: Type) -> LazyValue:
        return KnownValue(owner, type_spec, payload)

    async def computation(
        self, owner: ValueOwner, message: computation_pb2.Computation, type_spec: Type, source: Source
    ) -> LazyValue:
        if isinstance(type_spec, FunctionType):
            return FunctionValue(owner, type_spec, message, source)
        return CallValue(owner, type_spec, Frame(self._engine, ResolvedCall(message, type_spec, None), None, None))

    async def call(
        self, owner: ValueOwner, function: LazyValue, argument: LazyValue | None, type_spec: Type
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
        self, owner: ValueOwner, names: Sequence[str | None], members: Sequence[LazyValue], type_spec: Type
    ) -> LazyValue:
        return StructValue(owner, type_spec, members)

    async def selection(self, owner: ValueOwner, source: LazyValue, index: int, type_spec: Type) -> LazyValue:
        return source.member(index, type_spec)
