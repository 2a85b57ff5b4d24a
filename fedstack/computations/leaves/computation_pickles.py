"""Pickles the computations to which pickled functions refer, with the Python containers of the computations' types.

A leaf function in a script may call another computation of the script. A computation is pickled as its message, the
functions of its leaves and the Python containers of its types. Containers are included because the message of a type
contains only the names of members, whereas a function that iterates over a dict must receive a dict in the other
process too. One pickler writes all parts, so that a function may refer to a computation that refers to the function.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from fedstack.computations.leaves.function_pickles import Reduced, register_reducer
from fedstack.computations.leaves.named_functions import resolve_reference, resolves_to_itself
from fedstack.computations.leaves.portability import leaves_of
from fedstack.computations.leaves.python_functions import (
    PythonFunction,
    find_function,
    handle_content,
    handle_of,
    registry,
)
from fedstack.computations.types.language import (
    ConcreteComputation,
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    StructWithPythonType,
    Type,
    computation_pb2,
    get_context_stack,
)
from fedstack.computations.types.type_structure import fields_of, type_from_proto
from fedstack.computations.values.containers import takes_keywords
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import name_text
from fedstack.proto.carriers_pb2 import PythonContainer

_BUILT_IN: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "list": list, "tuple": tuple}
_NAMES = {container: name for name, container in _BUILT_IN.items()}


class Containers(NamedTuple):
    """The Python containers of the structs in a type.

    Attributes:
      container: The container of the type itself; `None` if the type is not a struct or has no container.
      members: The containers of a struct's members, a sequence's elements or a federated value's members. An entry is
        `None` if the member contains no containers. The tuple may be empty if no member of a struct contains any.
    """

    container: type | None
    members: "tuple[Containers | None, ...]"


def containers_of(type_spec: Type | None) -> Containers | None:
    """Returns the containers of a type, or `None` if the type contains no containers."""
    if isinstance(type_spec, (SequenceType, FederatedType)):
        inner = containers_of(type_spec.element if isinstance(type_spec, SequenceType) else type_spec.member)
        return None if inner is None else Containers(None, (inner,))
    if not isinstance(type_spec, StructType):
        return None
    members = tuple(containers_of(member) for _, member in fields_of(type_spec))
    container = cast("type | None", type_spec.python_container)
    return None if container is None and not any(members) else Containers(container, members)


def with_containers(type_spec: Type | None, containers: Containers | None) -> Type | None:
    """Returns a copy of a type that has the given containers.

    Raises:
      CarrierError: If the containers do not match the structs of the type.
    """
    return type_spec if type_spec is None or containers is None else _dressed(type_spec, containers)


def _dressed(type_spec: Type, containers: Containers | None) -> Type:
    if containers is None:
        return type_spec
    container, members = containers
    if isinstance(type_spec, SequenceType) and container is None and len(members) == 1:
        return SequenceType(_dressed(type_spec.element, members[0]))
    if isinstance(type_spec, FederatedType) and container is None and len(members) == 1:
        return FederatedType(_dressed(type_spec.member, members[0]), type_spec.placement, type_spec.all_equal)
    fields = fields_of(type_spec) if isinstance(type_spec, StructType) else ()
    if not isinstance(type_spec, StructType) or len(members) not in (0, len(fields)):
        raise CarrierError(f"Expected containers for the structs in {type_spec}, found containers for another type")
    if members:
        fields = [(name, _dressed(member, inner)) for (name, member), inner in zip(fields, members)]
    if container not in (None, list, tuple) and any(name is None for name, _ in fields):
        raise CarrierError(f"Expected all members of a {container.__name__} to have names, found {type_spec}")
    elements = [member if name is None else (name, member) for name, member in fields]
    return StructType(elements) if container is None else StructWithPythonType(elements, container)


def have_names(containers: Containers | None) -> bool:
    """Returns whether all containers are built-in types or classes that can be imported by name."""
    return all(container in _NAMES or resolves_to_itself(container) for container in _all_of(containers))


def _all_of(containers: Containers | None) -> Iterator[type]:
    if containers is not None:
        if containers.container is not None:
            yield containers.container
        for member in containers.members:
            yield from _all_of(member)


def to_message(containers: Containers | None) -> PythonContainer:
    """Returns the message for containers, all of which must have names (see `have_names`)."""
    if containers is None:
        return PythonContainer()
    container = containers.container
    if container is None:
        name = ""
    else:
        name = _NAMES.get(container) or f"{container.__module__}:{container.__qualname__}"
    return PythonContainer(type=name, member=map(to_message, containers.members))


def from_message(message: PythonContainer, check_module: Callable[[str, str], None]) -> Containers | None:
    """Returns the containers that a message describes.

    Args:
      message: The message.
      check_module: Called with the name of a module and the class to import from it. Raises an error if the module must
        not be imported.

    Raises:
      CarrierError: If a class does not exist or cannot be constructed from its fields.
    """
    members = tuple(from_message(member, check_module) for member in message.member)
    if not message.type:
        return Containers(None, members) if any(members) else None
    container: object = _BUILT_IN.get(message.type)
    if container is None:
        module, _, qualname = message.type.partition(":")
        check_module(module, message.type)
        container = resolve_reference(module, qualname)
        if not isinstance(container, type) or not takes_keywords(container):
            raise CarrierError(
                f"Expected {name_text(message.type)} to be a named tuple, an attrs class or a dataclass, found "
                f"{container!r}"
            )
    return Containers(container, members)


class WrittenType(NamedTuple):
    """The pickled form of a type."""

    content: bytes
    containers: Containers | None

    def read(self) -> Type:
        """Returns the type, with its containers."""
        found = type_from_proto(computation_pb2.Type.FromString(self.content))
        return cast(Type, with_containers(found, self.containers))


class WrittenFunction(NamedTuple):
    """The pickled form of a decorated function: the function itself, or its module and name if it can be imported."""

    function: Callable[..., object] | None
    reference: tuple[str, str] | None
    name: str
    parameter: WrittenType | None
    result: WrittenType
    vectorized: bool

    def read(self) -> PythonFunction:
        """Returns the function.

        Raises:
          CarrierError: If the function cannot be imported.
        """
        function = self.function
        if self.reference is not None:
            function = resolve_reference(*self.reference)
        parameter = None if self.parameter is None else self.parameter.read()
        function = cast("Callable[..., object]", function)
        return PythonFunction(function, self.name, parameter, self.result.read(), self.vectorized)


def write_function(found: PythonFunction) -> WrittenFunction:
    """Returns the pickled form of a decorated function."""
    function = found.function
    types = _write_type(found.parameter), _write_known_type(found.result), found.vectorized
    if resolves_to_itself(function):
        return WrittenFunction(None, (function.__module__, function.__qualname__), found.name, *types)
    return WrittenFunction(function, None, found.name, *types)


def _write_type(type_spec: Type | None) -> WrittenType | None:
    return None if type_spec is None else _write_known_type(type_spec)


def _write_known_type(type_spec: Type) -> WrittenType:
    return WrittenType(type_spec.to_proto().SerializeToString(), containers_of(type_spec))


class CarriedComputation(ConcreteComputation):
    """A computation that was unpickled together with a function. It keeps the functions of its leaves alive."""

    def __init__(
        self, message: computation_pb2.Computation, signature: FunctionType, functions: Mapping[int, PythonFunction]
    ) -> None:
        super().__init__(computation_proto=message, context_stack=get_context_stack(), annotated_type=signature)
        self._functions = functions

    # The language calls these methods when it builds this computation into a larger one, which then has copies of the
    # handles.

    def to_building_block(self) -> object:
        self._keep()
        return super().to_building_block()

    def to_compiled_building_block(self) -> object:
        self._keep()
        return super().to_compiled_building_block()

    def _keep(self) -> None:
        for serial in self._functions:
            registry.keep(serial)


def reduce_computation(computation: ConcreteComputation) -> Reduced:
    """Returns the pickled form of a computation, with the functions of its leaves."""
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


register_reducer(ConcreteComputation, reduce_computation)
register_reducer(CarriedComputation, reduce_computation)
