"""Defines the base of executors that wrap one other and change a single thing about it."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fedstack.computations.types.language import Executor, ExecutorValue, FunctionType, Struct, Type, computation_pb2
from fedstack.executors.base.engines import Engine, ProgramEngine
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import ForeignEngine
from fedstack.executors.base.verb_executor import VerbExecutor, create_known, engine_of, known_clients_of, pull
from fedstack.executors.base.verb_values import Recorder, Source, VerbValue, function_error


class ForwardedValue(VerbValue):
    """A value that stands for one of the target's.

    Attributes:
      target: That value.
    """

    __slots__ = ("_source", "target")

    def __init__(self, executor: VerbExecutor, type_spec: Type, target: ExecutorValue, source: object = None) -> None:
        super().__init__(executor, type_spec)
        self.target = target
        self._source = source  # a Python function lives as long as the computation object made of it

    async def pull(self) -> object:
        self._executor.check_open()
        if isinstance(self._type, FunctionType):
            raise function_error(self._type)
        return await pull(self.target)


class ForwardingRecorder(Recorder[ForwardedValue]):
    """Asks the target for each value.

    Args:
      target: The executor below, of any origin.
    """

    def __init__(self, target: Executor) -> None:
        self._target = target

    @property
    def known_clients(self) -> int | None:
        return known_clients_of(self._target)

    async def known(self, owner: VerbExecutor, payload: object, type_spec: Type) -> ForwardedValue:
        return ForwardedValue(owner, type_spec, await create_known(self._target, payload, type_spec))

    async def computation(
        self, owner: VerbExecutor, message: computation_pb2.Computation, type_spec: Type, source: Source
    ) -> ForwardedValue:
        return ForwardedValue(owner, type_spec, await self._target.create_value(message, type_spec), source)

    async def call(
        self, owner: VerbExecutor, function: ForwardedValue, argument: ForwardedValue | None, type_spec: Type
    ) -> ForwardedValue:
        called = await self._target.create_call(function.target, None if argument is None else argument.target)
        return ForwardedValue(owner, type_spec, called, (function, argument))

    async def struct(
        self,
        owner: VerbExecutor,
        names: Sequence[str | None],
        members: Sequence[ForwardedValue],
        type_spec: Type,
    ) -> ForwardedValue:
        # The only form of a struct that all executors take, with names or without.
        struct = Struct([(name, member.target) for name, member in zip(names, members)])
        return ForwardedValue(owner, type_spec, await self._target.create_struct(struct), members)

    async def selection(
        self, owner: VerbExecutor, source: ForwardedValue, index: int, type_spec: Type
    ) -> ForwardedValue:
        return ForwardedValue(owner, type_spec, await self._target.create_selection(source.target, index), source)


Wrap: TypeAlias = Callable[[ProgramEngine], ProgramEngine]


class WrapperExecutor(VerbExecutor):
    """Runs on the engine of its target, changed by `wrap`; without an engine, through the verbs of its target.

    Without an engine, a wrapper changes values as they pass: in `create_known`, `embed` and `computed`.

    Args:
      target: The executor below, of any origin. It is closed with this one.
      wrap: Returns a program engine over the target's; `None` to change nothing there.
      stand_in: Makes the engine over a target that has none; `None` to pass the verbs on.
    """

    def __init__(
        self, target: Executor, wrap: Wrap | None = None, stand_in: Callable[[Executor], Engine] | None = None
    ) -> None:
        engine = engine_of(target)
        if engine is None:
            engine = None if stand_in is None else stand_in(target)
        elif wrap is not None:
            engine = engine.over(wrap)
        recorder = ForwardingRecorder(target) if engine is None else LazyRecorder(engine)
        self._below: ProgramEngine | None = None
        if engine is None and wrap is not None:
            # Executors with clients above this one run its programs, which are counted, slowed down and so on as usual.
            foreign = ForeignEngine(target)
            self._below = wrap(foreign)
            super().__init__(recorder, target, foreign)
        else:
            super().__init__(recorder, target)
        self.target = target

    @property
    def programs(self) -> ProgramEngine | None:
        return super().programs if self._below is None else self._below

    def accepts(self, computation: computation_pb2.Computation) -> None:
        if isinstance(self.target, VerbExecutor):
            self.target.accepts(computation)
