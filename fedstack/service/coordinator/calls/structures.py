"""Walks structures as users write them: lists, tuples, dictionaries and attrs classes, one inside the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import attrs

from fedstack.computations.types.type_structure import join_path

_T = TypeVar("_T")


def members_of(structure: object) -> Sequence[object]:
    """Returns what is in a container; nothing is in anything else."""
    if isinstance(structure, Mapping):
        return list(cast("Mapping[object, object]", structure).values())
    if isinstance(structure, (list, tuple)):
        return cast("Sequence[object]", structure)
    if attrs.has(type(structure)):
        return [getattr(structure, field.name) for field in attrs.fields(type(structure))]
    return ()


def parts_of(structure: object, kind: type[_T]) -> Iterator[_T]:
    """Yields what is of a class, at any depth."""
    if isinstance(structure, kind):
        yield structure
        return
    for member in members_of(structure):
        yield from parts_of(member, kind)


def leaves_of(structure: object, path: str) -> Iterator[tuple[str, object]]:
    """Yields what is in a structure and is no container with something in it, each with the path to it."""
    members = members_of(structure)
    if not members:
        yield path, structure
    names: Sequence[object] = ()
    if isinstance(structure, Mapping):
        names = list(cast("Mapping[object, object]", structure))
    elif members and attrs.has(type(structure)):
        names = [field.name for field in attrs.fields(type(structure))]
    for index, member in enumerate(members):
        yield from leaves_of(member, join_path(path, str(names[index]) if names else None, index))


def replaced(structure: object, part: Callable[[object], object]) -> object:
    """Returns a structure with others in place of some of its parts; containers in which nothing changes stay.

    Args:
      structure: The structure.
      part: Returns what is to be in the place of a part, or that part itself.
    """
    found = part(structure)
    if found is not structure:
        return found
    before = members_of(structure)
    members = [replaced(member, part) for member in before]
    if all(new is old for new, old in zip(members, before)):
        return structure
    container = cast("type[Any]", type(structure))
    if issubclass(container, Mapping):
        return cast(Any, container)(zip(cast("Mapping[object, object]", structure), members))
    if attrs.has(container):
        names = [field.alias for field in attrs.fields(container)]
        return attrs.evolve(cast(Any, structure), **dict(zip(names, members)))
    return container(*members) if hasattr(container, "_fields") else container(members)
