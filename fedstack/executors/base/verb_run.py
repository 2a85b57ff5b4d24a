"""Runs traced functions through the four verbs of an executor: of any origin, and whatever it knows of placements.

Names, lambdas and blocks are resolved here. What is left are calls of intrinsics and of leaf functions, selections and
structs: a verb each. Functions that an intrinsic takes are sent as computations.
"""

from collections.abc import Sequence
from typing import cast

from fedstack.computations.leaves.portability import free_references
from fedstack.computations.plan.graph import Function
from fedstack.computations.plan.render import function_of, reference, render, selection
from fedstack.computations.types.language import Executor, ExecutorValue, Struct, StructType, Type, computation_pb2
from fedstack.computations.types.type_structure import fields_of, type_from_proto
from fedstack.executors.base.engines import Engine, FunctionRun
from fedstack.executors.base.schedule_run import merged_argument
from fedstack.executors.base.verb_executor import create_known, known_clients_of, pull
from fedstack.executors.concurrency.lazy_task import LazyTask, owned_by

Computation = computation_pb2.Computation
_LEAVES = ("data", "xla", "tensorflow")


class VerbEngine(Engine):
    """Runs functions on an executor that has no engine.

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
    """One run of a function: the values that the target has made for it, each when something needs it first.

    Args:
      target: The executor that makes them.
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
        """Returns the way from the parameter to a member of it that an expression stands for."""
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
            # Functions over elements of a sequence refer to names around them: what these stand for goes as argument.
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
    """Returns a function that does nothing but call a leaf as that leaf: not all executors take lambdas."""
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
