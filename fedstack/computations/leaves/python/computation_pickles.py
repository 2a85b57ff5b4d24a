"""Writes computations that functions by value refer to: a leaf of a script may call another computation of the script.

A computation is written as its message, with the functions of the leaves in it, and with the Python containers of its
types, which messages do not have. All goes through one pickler, so that a function may refer to a computation that
refers to the function.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from fedstack.computations.leaves.portability import leaves_of
from fedstack.computations.leaves.python.function_pickles import Reduced, register_reducer
from fedstack.computations.leaves.python.handles import (
    PythonFunction,
    find_function,
    handle_content,
    handle_of,
    keep_function,
)
from fedstack.computations.leaves.python.named_functions import resolve_reference, resolves_to_itself
from fedstack.computations.leaves.python.python_containers import Containers, containers_of, with_containers
from fedstack.computations.types.language import (
    ConcreteComputation,
    FunctionType,
    Type,
    computation_pb2,
    get_context_stack,
)
from fedstack.computations.types.type_structure import type_from_proto


class WrittenType(NamedTuple):
    """What stands for a type."""

    content: bytes
    containers: Containers | None

    def read(self) -> Type:
        """Returns the type."""
        found = type_from_proto(computation_pb2.Type.FromString(self.content))
        return cast(Type, with_containers(found, self.containers))


class WrittenFunction(NamedTuple):
    """What stands for a decorated function: itself, or its module and name where these lead to it."""

    function: Callable[..., object] | None
    reference: tuple[str, str] | None
    name: str
    parameter: WrittenType | None
    result: WrittenType

    def read(self) -> PythonFunction:
        """Returns the function.

        Raises:
          CarrierError: If it is not where it is said to be.
        """
        function = self.function
        if self.reference is not None:
            function = resolve_reference(*self.reference)
        parameter = None if self.parameter is None else self.parameter.read()
        return PythonFunction(cast("Callable[..., object]", function), self.name, parameter, self.result.read())


def write_function(found: PythonFunction) -> WrittenFunction:
    """Returns what stands for a decorated function."""
    function = found.function
    types = _write_type(found.parameter), _write_known_type(found.result)
    if resolves_to_itself(function):
        return WrittenFunction(None, (function.__module__, function.__qualname__), found.name, *types)
    return WrittenFunction(function, None, found.name, *types)


def _write_type(type_spec: Type | None) -> WrittenType | None:
    return None if type_spec is None else _write_known_type(type_spec)


def _write_known_type(type_spec: Type) -> WrittenType:
    return WrittenType(type_spec.to_proto().SerializeToString(), containers_of(type_spec))


class CarriedComputation(ConcreteComputation):
    """A computation that came in with a function, and keeps the functions of the leaves in it alive."""

    def __init__(
        self, message: computation_pb2.Computation, signature: FunctionType, functions: Mapping[int, PythonFunction]
    ) -> None:
        super().__init__(computation_proto=message, context_stack=get_context_stack(), annotated_type=signature)
        self._functions = functions

    # The language calls these when it builds this computation into another one, which then holds copies of the handles.

    def to_building_block(self) -> object:
        self._keep()
        return super().to_building_block()

    def to_compiled_building_block(self) -> object:
        self._keep()
        return super().to_compiled_building_block()

    def _keep(self) -> None:
        for serial in self._functions:
            keep_function(serial)


def _reduce(computation: ConcreteComputation) -> Reduced:
    message = computation.to_proto()
    handles = [handle for leaf in leaves_of(message) if (handle := handle_of(leaf.data.content)) is not None]
    functions = [(handle.serial, write_function(find_function(handle))) for handle in handles]
    signature = computation.type_signature
    types = _write_type(signature.parameter), _write_known_type(signature.result)
    return _rebuilt, (message.SerializeToString(deterministic=True), functions, *types)


def _rebuilt(
    content: bytes,
    functions: Sequence[tuple[int, WrittenFunction]],
    parameter: WrittenType | None,
    result: WrittenType,
) -> ConcreteComputation:
    message = computation_pb2.Computation.FromString(content)
    found = {serial: written.read() for serial, written in functions}
    contents = {serial: handle_content(function) for serial, function in found.items()}
    for leaf in leaves_of(message):
        handle = handle_of(leaf.data.content)
        if handle is not None:
            leaf.data.content.CopyFrom(contents[handle.serial][0])
    alive = {serial: found[old] for old, (_, serial) in contents.items()}
    return CarriedComputation(
        message, FunctionType(None if parameter is None else parameter.read(), result.read()), alive
    )


register_reducer(ConcreteComputation, _reduce)
register_reducer(CarriedComputation, _reduce)
