"""Defines the base class of executors that wrap another executor and change one aspect of its behavior."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fedstack.computations.types.language import Executor, ExecutorValue, FunctionType, Struct, Type, computation_pb2
from fedstack.executors.base.engines import Engine, ProgramEngine
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import ForeignEngine
from fedstack.executors.base.verb_executor import VerbExecutor, create_known, engine_of, known_clients_of, pull
from fedstack.executors.base.verb_values import Recorder, Source, VerbValue, function_error


class ForwardedValue(VerbValue):
    """A value that wraps a value of the target executor.

    Attributes:
      target: The wrapped value.
    """

    __slots__ = ("_source", "target")

    def __init__(self, executor: VerbExecutor, type_spec: Type, target: ExecutorValue, source: object = None) -> None:
        super().__init__(executor, type_spec)
        self.target = target
        self._source = source  # keeps the computation object alive, and with it the Python function

    async def pull(self) -> object:
        self._executor.check_open()
        if isinstance(self._type, FunctionType):
            raise function_error(self._type)
        return await pull(self.target)


class ForwardingRecorder(Recorder[ForwardedValue]):
    """Forwards each verb to the target executor.

    Args:
      target: The executor below, which need not be part of fedstack.
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
        # `Struct` is the only form that all executors accept, with or without names.
        struct = Struct([(name, member.target) for name, member in zip(names, members)])
        return ForwardedValue(owner, type_spec, await self._target.create_struct(struct), members)

    async def selection(
        self, owner: VerbExecutor, source: ForwardedValue, index: int, type_spec: Type
    ) -> ForwardedValue:
        return ForwardedValue(owner, type_spec, await self._target.create_selection(source.target, index), source)


Wrap: TypeAlias = Callable[[ProgramEngine], ProgramEngine]


class WrapperExecutor(VerbExecutor):
    """Runs work on a target executor and changes one aspect of the target's behavior.

    If the target has an engine, the wrapper runs work on this engine, changed by `wrap`. Otherwise it forwards the
    verbs to the target, and changes values in `create_known`, `embed` and `computed`.

    Args:
      target: The executor below, which need not be part of fedstack. It is closed with this executor.
      wrap: Wraps the target's program engine in another one; `None` to leave the program engine unchanged.
      stand_in: Creates an engine for a target that has none; `None` to forward the verbs.
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
            # Executors above this wrapper that have clients run their programs through it, so that its change applies.
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
