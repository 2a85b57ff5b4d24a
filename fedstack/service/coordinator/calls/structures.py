"""Traverses nested structures of lists, tuples, dictionaries, attrs classes and dataclasses."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import attrs

from fedstack.computations.types.type_structure import join_path


def members_of(structure: object) -> Sequence[object]:
    """Returns the members of a container, or an empty sequence for any other object."""
    if isinstance(structure, Mapping):
        return list(cast("Mapping[object, object]", structure).values())
    if isinstance(structure, (list, tuple)):
        return cast("Sequence[object]", structure)
    return [getattr(structure, name, None) for name in _fields_of(structure)]


def _fields_of(structure: object) -> Sequence[str]:
    """Returns the field names of an attrs or dataclass instance, or an empty sequence for any other object."""
    kind: type[Any] = type(structure)
    is_attrs = hasattr(kind, "__attrs_attrs__")
    if not (is_attrs or hasattr(kind, "__dataclass_fields__")) or isinstance(structure, (list, tuple, Mapping)):
        return ()
    return [field.name for field in (attrs.fields(kind) if is_attrs else dataclasses.fields(kind))]


def leaves_of(
    structure: object,
    path: str,
    enters: Callable[[object], bool] = lambda _: True,
    seen: dict[int, object] | None = None,
) -> Iterator[tuple[str, object]]:
    """Yields the path and the object of each leaf in a structure. Empty containers are leaves.

    Args:
      structure: The structure.
      path: The path to the structure.
      enters: Returns whether to descend into a container. If not, the container is yielded as a leaf.
      seen: The attrs and dataclass instances that have been visited, by identity. Their references may form cycles.
    """
    members = members_of(structure) if enters(structure) else ()
    if not members:
        yield path, structure
        return
    seen = {} if seen is None else seen
    names: Sequence[object] = _fields_of(structure)
    if names:
        if id(structure) in seen:
            return
        seen[id(structure)] = structure
    elif isinstance(structure, Mapping):
        names = list(cast("Mapping[object, object]", structure))
    for index, member in enumerate(members):
        yield from leaves_of(member, join_path(path, str(names[index]) if names else None, index), enters, seen)


def replaced(
    structure: object, part: Callable[[object], object], seen: dict[int, tuple[object, object]] | None = None
) -> object:
    """Returns a copy of a structure in which some parts are replaced. Containers without replaced parts are not copied.

    Instances of attrs classes and dataclasses are copied without running `__init__`.

    Args:
      structure: The structure.
      part: Returns the replacement for a part, or the part itself to keep it.
      seen: The attrs and dataclass instances that have been visited, by identity, each with its replacement.
    """
    found = part(structure)
    if found is not structure:
        return found
    before = members_of(structure)
    if not before:
        return structure
    seen = {} if seen is None else seen
    if id(structure) in seen:
        return seen[id(structure)][1]
    fields = _fields_of(structure)
    if fields:
        seen[id(structure)] = structure, structure
    members = [replaced(member, part, seen) for member in before]
    if all(new is old for new, old in zip(members, before)):
        return structure
    container = cast("type[Any]", type(structure))
    if fields:
        made = copy.copy(structure)
        for name, new, old in zip(fields, members, before):
            if new is not old:
                object.__setattr__(made, name, new)  # works for frozen classes too
        seen[id(structure)] = structure, made
        return made
    if issubclass(container, Mapping):
        return cast(Any, container)(zip(cast("Mapping[object, object]", structure), members))
    return container(*members) if hasattr(container, "_fields") else container(members)
