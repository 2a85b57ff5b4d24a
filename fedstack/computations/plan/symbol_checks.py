"""Checks symbols against declared types while a computation is traced."""

from fedstack.computations.plan.graph import Callee, Node, Pack, Symbol, type_of
from fedstack.computations.types.language import FunctionType, StructType, Type
from fedstack.computations.types.type_sizes import check_assignable, matched_members
from fedstack.computations.types.type_structure import contains_function, fields_of
from fedstack.errors import InvalidComputationError, TypeMismatchError


def check_fits(value: Symbol, expected: Type, path: str) -> None:
    """Checks that a symbol fits an expected type.

    Raises:
      TypeMismatchError: If it does not; the message names both types and the path.
    """
    if isinstance(value, Pack) and isinstance(expected, StructType):
        members = matched_members(expected, value.names, path)
        if members is not None:
            for member, (member_path, member_type) in zip(value.members, members):
                check_fits(member, member_type, member_path)
            return
    check_assignable(expected, type_of(value), path)


def checked_index(source: Symbol, index: int) -> int:
    """Returns the index of a member to select, after checking it.

    Raises:
      TypeMismatchError: If the source is not a struct, or has no such member.
    """
    if isinstance(source, Pack):
        size = len(source.members)
    elif isinstance(source, Node) and isinstance(source.type, StructType):
        size = len(fields_of(source.type))
    else:
        raise TypeMismatchError(f"Expected a struct to select from, found {type_of(source)}")
    if not 0 <= index < size:
        raise TypeMismatchError(
            f"Expected an index from 0 to {size - 1}, found {index}; in a selection from {type_of(source)}"
        )
    return index


def check_plain(value: Symbol, where: str) -> None:
    """Checks that a symbol contains no function."""
    if isinstance(value, Callee):
        raise TypeMismatchError(f"Expected a value, found the function {value.type}; in an argument of {where}")
    if isinstance(value, Pack):
        for member in value.members:
            check_plain(member, where)


def check_takes_values(signature: FunctionType) -> None:
    """Checks that a computation can be called from outside.

    Raises:
      InvalidComputationError: If it takes a function.
    """
    if signature.parameter is not None and contains_function(signature.parameter):
        raise InvalidComputationError(
            f"Expected a computation of values, found one that takes a function: {signature}; call it from another "
            "federated_computation that supplies the function"
        )


def check_result(result: Symbol, declared: Type) -> None:
    """Checks the result of a computation against its declared type.

    Raises:
      InvalidComputationError: If it returns a function.
      TypeMismatchError: If the result does not fit the declared type.
    """
    if _returns_function(result) or contains_function(declared):
        raise InvalidComputationError(
            f"Expected a computation that returns values, found one that returns a function: {declared}; call the "
            "function inside and return its result"
        )
    check_fits(result, declared, "result")


def _returns_function(symbol: Symbol) -> bool:
    return isinstance(symbol, Callee) or (isinstance(symbol, Pack) and any(map(_returns_function, symbol.members)))
