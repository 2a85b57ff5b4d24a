"""Says which types elements of datasets may have, and what users see of elements."""

from collections.abc import Callable
from typing import Any, cast

from fedstack.computations.types.language import StructType, Type, to_type
from fedstack.computations.types.type_structure import fields_of, tensor_leaves
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import InvalidComputationError, TypeMismatchError
from fedstack.service.data.datasets.blocks import tensor_of_rows

# From a payload to what a user sees of it.
Shown = Callable[[Any], Any]


def type_of(spec: object, where: str) -> Type:
    """Returns the type that users mean.

    Raises:
      TypeMismatchError: If they mean none.
    """
    try:
        return to_type(spec)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeMismatchError(f"Expected a type, found {describe(spec)}; at {where}") from error


def checked_element(element: Type) -> Type:
    """Returns a type that elements may have.

    Raises:
      InvalidComputationError: If it has something other than tensors, or structs with names for some members.
    """
    for _ in tensor_leaves(element):
        pass
    shower(element)
    return element


def laid_out(arrays: object, path: str) -> tuple[Type, object]:
    """Returns the type of the rows of arrays in containers, and the arrays in tuples."""
    if isinstance(arrays, dict):
        found = {str(k): laid_out(v, f"{path}[{k!r}]") for k, v in cast("dict[object, object]", arrays).items()}
        return StructType([(k, t) for k, (t, _) in found.items()]), tuple(members for _, members in found.values())
    if isinstance(arrays, tuple):
        names = cast("tuple[str, ...] | None", getattr(cast(object, arrays), "_fields", None))
        parts = [laid_out(part, f"{path}[{k}]") for k, part in enumerate(cast("tuple[object, ...]", arrays))]
        types = [t for t, _ in parts]
        return StructType(types if names is None else list(zip(names, types))), tuple(members for _, members in parts)
    tensor = tensor_of_rows(cast(Any, arrays))
    if tensor is None:
        raise TypeMismatchError(f"Expected numbers or text, found {describe(arrays)}; at {path}; convert it first")
    return tensor, arrays


def shower(element: Type) -> Shown | None:
    """Returns the function from a payload to what a user sees of it; `None` where they are the same."""
    if not isinstance(element, StructType):
        return None
    names = [name for name, _ in fields_of(element)]
    members = [shower(t) for _, t in fields_of(element)]
    if None in names and any(names):
        raise InvalidComputationError(f"Expected members with names or without, found {element}; name all or none")
    if not any(members):
        return (lambda payload: dict(zip(names, payload))) if any(names) else None
    each = [show or _same for show in members]
    if names[0]:
        return lambda payload: {name: show(member) for name, show, member in zip(names, each, payload)}
    return lambda payload: tuple([show(member) for show, member in zip(each, payload)])


def _same(payload: object) -> object:
    return payload
