"""Walks structures as users write them: nested lists, tuples, dictionaries, attrs classes and dataclasses."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import attrs

from fedstack.computations.types.type_structure import join_path


def members_of(structure: object) -> Sequence[object]:
    """Returns the members of a container; an empty sequence for anything else."""
    if isinstance(structure, Mapping):
        return list(cast("Mapping[object, object]", structure).values())
    if isinstance(structure, (list, tuple)):
        return cast("Sequence[object]", structure)
    return [getattr(structure, name, None) for name in _fields_of(structure)]


def _fields_of(structure: object) -> Sequence[str]:
    """Returns the field names of an instance of an attrs class or a dataclass; an empty sequence for anything else."""
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
    """Yields the leaves of a structure, including empty containers, each after the path to it.

    Args:
      structure: The structure.
      path: The path to it.
      enters: Returns whether to look into a container; if not, the container itself is yielded.
      seen: The instances that have been entered, by identity; they may refer to each other.
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
    """Returns a structure with some of its parts replaced; containers in which nothing changes are kept.

    Instances are copied without running any code of their classes.

    Args:
      structure: The structure.
      part: Returns the replacement of a part, or the part itself.
      seen: The instances that have been entered, by identity, each with its replacement.
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
