"""Checks that a value of one type can be used where another is asked for, and says where in a struct it cannot."""

from collections.abc import Sequence

from fedstack.computations.types.language import StructType, Type
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import fields_of, join_path
from fedstack.errors import TypeMismatchError
from fedstack.foundations.error_text import name_text


def check_assignable(expected: Type, found: Type, path: str) -> None:
    """Checks one type against another.

    Raises:
      TypeMismatchError: If a value of type `found` does not fit `expected`; the message has both types and the path.
    """
    if expected is found:
        return
    if isinstance(expected, StructType) and isinstance(found, StructType):
        theirs = fields_of(found)
        members = matched_members(expected, [name for name, _ in theirs], path)
        if members is not None:
            for (member_path, wanted), (_, given) in zip(members, theirs):
                check_assignable(wanted, given, member_path)
            return
    try:
        fits = expected.is_assignable_from(found)
    except TypeError as error:  # the language refuses to compare abstract types
        raise TypeMismatchError(f"Expected a concrete type, found {type_text(expected)}; at {path}; {error}") from error
    if not fits:
        raise TypeMismatchError(f"Expected {type_text(expected)}, found {type_text(found)}; at {path}")


def matched_members(expected: StructType, names: Sequence[str | None], path: str) -> Sequence[tuple[str, Type]] | None:
    """Returns (path, type) of each member of a struct type after checking the names given for them.

    A member without a name fits any name. `None` where the number of members differs.

    Raises:
      TypeMismatchError: If a name is another one than the type's.
    """
    fields = fields_of(expected)
    if len(fields) != len(names):
        return None
    for index, (given, (wanted, _)) in enumerate(zip(names, fields)):
        if given is not None and given != wanted:
            where = join_path(path, wanted, index)
            raise TypeMismatchError(
                f"Expected {type_text(expected)}, found a member named {name_text(given)!r}; at {where}"
            )
    return [(join_path(path, name, index), member) for index, (name, member) in enumerate(fields)]
