"""Runs the computations of programs, which get references to values before the values are there."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from fedstack.computations.types.language import (
    AsyncContext,
    ConcreteComputation,
    FederatedType,
    MaterializableValueReference,
    SequenceType,
    Struct,
    StructType,
    TensorType,
    Type,
    contains_only_server_placed_data,
    materialize_value,
    struct_elements,
)
from fedstack.computations.types.language import (
    FederatedContext as LanguageContext,
)
from fedstack.computations.types.type_structure import fields_of, is_placed_at_clients
from fedstack.computations.values.containers import result_maker
from fedstack.errors import ContextError, InvalidComputationError


class ValueReference(MaterializableValueReference):
    """A part of the result of a call.

    Args:
      call: The call.
      path: The positions and names that lead to the part.
      type_signature: The type of the part.
    """

    def __init__(self, call: "asyncio.Task[object]", path: tuple["int | str", ...], type_signature: Type) -> None:
        self._call = call
        self._path = path
        self._type = type_signature

    @property
    def type_signature(self) -> Type:
        """The type of the value."""
        return self._type

    async def get_value(self) -> object:
        """Returns the value, once the call has ended."""
        value = await asyncio.shield(self._call)
        for step in self._path:
            value = _member(value, step)
        return value

    def __repr__(self) -> str:
        return f"<ValueReference of {self._type}>"


class FederatedContext(LanguageContext):
    """Runs the computations of a program in an asynchronous context.

    A call returns at once, with references in place of tensors and sequences. They can be passed to further calls,
    saved and released, all of which wait for the values. What is placed at clients is passed on as it is: lists of
    clients, batches, tables and references to datasets cost nothing per client.

    Args:
      context: The context, such as that of `fedstack.create_async_local_execution_context()`.
    """

    def __init__(self, context: AsyncContext) -> None:
        self._context = context

    def invoke(self, comp: ConcreteComputation, arg: object) -> object:
        """Starts a call of a computation and returns references to its result.

        Raises:
          InvalidComputationError: If the computation returns values that are placed at clients, or functions.
          ContextError: If no event loop runs.
        """
        signature = comp.type_signature
        if not contains_only_server_placed_data(signature.result):
            raise InvalidComputationError(
                f"Expected a computation whose result is placed at the server, or not placed, found the result "
                f"{signature.result}; a program does not see clients' values: aggregate them, or call the computation "
                "outside of the program"
            )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ContextError(
                "Expected a running event loop for the calls of a program, found none; make them in a coroutine that "
                "asyncio.run runs, or use a synchronous context"
            ) from None
        call = loop.create_task(self._call(comp, arg))
        return _references(call, (), signature.result)

    async def _call(self, comp: ConcreteComputation, arg: object) -> object:
        parameter = comp.type_signature.parameter
        argument = None if parameter is None else await _materialized(arg, parameter)
        return await cast(Any, self._context).invoke(comp, argument)

    def __repr__(self) -> str:
        return f"<FederatedContext over {self._context!r}>"


def _member(value: object, step: "int | str") -> object:
    if isinstance(step, int):
        return cast("Sequence[object]", value)[step]
    return cast("dict[str, object]", value)[step] if isinstance(value, dict) else getattr(value, step)


async def _materialized(value: object, type_spec: Type) -> object:
    """Returns an argument with values in place of references, except in what is placed at clients."""
    if is_placed_at_clients(type_spec):
        return value
    if isinstance(type_spec, StructType) and isinstance(value, (Struct, dict, list, tuple)):
        members = _members(cast(Any, value), [name for name, _ in fields_of(type_spec)])
        found = [await _materialized(member, t) for member, (_, t) in zip(members, fields_of(type_spec), strict=True)]
        return Struct([(name, member) for (name, _), member in zip(fields_of(type_spec), found)])
    return await materialize_value(value)


def _members(value: Any, names: "Sequence[str | None]") -> Sequence[object]:
    if isinstance(value, Struct):
        return [member for _, member in struct_elements(value)]
    if isinstance(value, dict):
        return [cast("dict[str | None, object]", value)[name] for name in names]
    return cast("Sequence[object]", value)


def _references(call: "asyncio.Task[object]", path: tuple["int | str", ...], type_spec: Type) -> object:
    if isinstance(type_spec, FederatedType):
        return _references(call, path, type_spec.member)
    if isinstance(type_spec, StructType):
        members = [
            _references(call, (*path, index if name is None else name), member)
            for index, (name, member) in enumerate(fields_of(type_spec))
        ]
        return result_maker(type_spec)(members)
    assert isinstance(type_spec, (TensorType, SequenceType))
    return ValueReference(call, path, type_spec)
