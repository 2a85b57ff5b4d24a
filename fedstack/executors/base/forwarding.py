"""Makes values of an executor out of those of its target, verb by verb, for targets that have no engine."""

from collections.abc import Sequence

from fedstack.computations.types.language import Executor, ExecutorValue, FunctionType, Struct, Type, computation_pb2
from fedstack.executors.base.verb_executor import create_known, known_clients_of, pull
from fedstack.executors.base.verb_values import Recorder, Source, ValueOwner, VerbValue, function_error


class ForwardedValue(VerbValue):
    """A value that stands for one of the target's.

    Attributes:
      target: That value.
    """

    __slots__ = ("_source", "target")

    def __init__(self, executor: ValueOwner, type_spec: Type, target: ExecutorValue, source: object = None) -> None:
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

    async def known(self, owner: ValueOwner, payload: object, type_spec: Type) -> ForwardedValue:
        return ForwardedValue(owner, type_spec, await create_known(self._target, payload, type_spec))

    async def computation(
        self, owner: ValueOwner, message: computation_pb2.Computation, type_spec: Type, source: Source
    ) -> ForwardedValue:
        return ForwardedValue(owner, type_spec, await self._target.create_value(message, type_spec), source)

    async def call(
        self, owner: ValueOwner, function: ForwardedValue, argument: ForwardedValue | None, type_spec: Type
    ) -> ForwardedValue:
        called = await self._target.create_call(function.target, None if argument is None else argument.target)
        return ForwardedValue(owner, type_spec, called, (function, argument))

    async def struct(
        self,
        owner: ValueOwner,
        names: Sequence[str | None],
        members: Sequence[ForwardedValue],
        type_spec: Type,
    ) -> ForwardedValue:
        # The only form of a struct that all executors take, with names or without.
        struct = Struct([(name, member.target) for name, member in zip(names, members)])
        return ForwardedValue(owner, type_spec, await self._target.create_struct(struct), members)

    async def selection(self, owner: ValueOwner, source: ForwardedValue, index: int, type_spec: Type) -> ForwardedValue:
        return ForwardedValue(owner, type_spec, await self._target.create_selection(source.target, index), source)
