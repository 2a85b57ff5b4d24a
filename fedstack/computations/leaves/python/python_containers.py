"""Says in which Python containers a function sees structs, so that it sees the same ones in another process.

Types as messages have names only. A function that iterates over a dict would get names here and values there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

from fedstack.computations.leaves.python.named_functions import resolve_reference, resolves_to_itself
from fedstack.computations.types.language import FederatedType, SequenceType, StructType, StructWithPythonType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.containers import takes_keywords
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import name_text
from fedstack.proto.carriers_pb2 import PythonContainer

_BUILT_IN: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "list": list, "tuple": tuple}
_NAMES = {container: name for name, container in _BUILT_IN.items()}


class Containers(NamedTuple):
    """The containers of the structs in a type.

    Attributes:
      container: That of the type itself; `None` for what is no struct, or a struct without one of its own.
      members: Those of a struct's members, a sequence's elements or a federated value's members; `None` where there are
        none. A struct of which no member has one may leave all out.
    """

    container: type | None
    members: "tuple[Containers | None, ...]"


def containers_of(type_spec: Type | None) -> Containers | None:
    """Returns the containers of a type; `None` if there are none in it."""
    if isinstance(type_spec, (SequenceType, FederatedType)):
        inner = containers_of(type_spec.element if isinstance(type_spec, SequenceType) else type_spec.member)
        return None if inner is None else Containers(None, (inner,))
    if not isinstance(type_spec, StructType):
        return None
    members = tuple(containers_of(member) for _, member in fields_of(type_spec))
    container = cast("type | None", type_spec.python_container)
    return None if container is None and not any(members) else Containers(container, members)


def with_containers(type_spec: Type | None, containers: Containers | None) -> Type | None:
    """Returns a type that has the containers.

    Raises:
      CarrierError: If they do not fit it.
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
        raise CarrierError(f"Expected containers for the structs in {type_spec}, found some for another type")
    if members:
        fields = [(name, _dressed(member, inner)) for (name, member), inner in zip(fields, members)]
    if container not in (None, list, tuple) and any(name is None for name, _ in fields):
        raise CarrierError(f"Expected names for all members of a {container.__name__}, found {type_spec}")
    elements = [member if name is None else (name, member) for name, member in fields]
    return StructType(elements) if container is None else StructWithPythonType(elements, container)


def have_names(containers: Containers | None) -> bool:
    """Tells whether all containers are built in, or classes that can be imported by name."""
    return all(container in _NAMES or resolves_to_itself(container) for container in _all_of(containers))


def _all_of(containers: Containers | None) -> Iterator[type]:
    if containers is not None:
        if containers.container is not None:
            yield containers.container
        for member in containers.members:
            yield from _all_of(member)


def to_message(containers: Containers | None) -> PythonContainer:
    """Returns the message for containers that have names."""
    if containers is None:
        return PythonContainer()
    container = containers.container
    if container is None:
        name = ""
    else:
        name = _NAMES.get(container) or f"{container.__module__}:{container.__qualname__}"
    return PythonContainer(type=name, member=map(to_message, containers.members))


def from_message(message: PythonContainer, check_module: Callable[[str, str], None]) -> Containers | None:
    """Returns the containers that a message names.

    Args:
      message: The message.
      check_module: Raises an error unless the module, the first argument, may be imported for the second.

    Raises:
      CarrierError: If a class is not there, or is none that is built from its fields.
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
                f"Expected a named tuple, an attrs class or a dataclass as {name_text(message.type)}, found "
                f"{container!r}"
            )
    return Containers(container, members)
