"""Checks symbols against declared types during tracing."""

from fedstack.computations.plan.graph import Callee, Node, Pack, Symbol, type_of
from fedstack.computations.types.language import FunctionType, StructType, Type
from fedstack.computations.types.type_sizes import check_assignable, matched_members
from fedstack.computations.types.type_structure import contains_function, fields_of
from fedstack.errors import InvalidComputationError, TypeMismatchError


def check_fits(value: Symbol, expected: Type, path: str) -> None:
    """Checks that a symbol can be assigned to an expected type.

    Raises:
      TypeMismatchError: If the types do not match. The message names both types and the path.
    """
    if isinstance(value, Pack) and isinstance(expected, StructType):
        members = matched_members(expected, value.names, path)
        if members is not None:
            for member, (member_path, member_type) in zip(value.members, members):
                check_fits(member, member_type, member_path)
            return
    check_assignable(expected, type_of(value), path)


def checked_index(source: Symbol, index: int) -> int:
    """Returns `index` after checking that `source` is a struct with a member at this index.

    Raises:
      TypeMismatchError: If `source` is not a struct, or the index is out of range.
    """
    if isinstance(source, Pack):
        size = len(source.members)
    elif isinstance(source, Node) and isinstance(source.type, StructType):
        size = len(fields_of(source.type))
    else:
        raise TypeMismatchError(
            f"Expected a struct to select from, found a value of type {type_of(source)}; select members of structs only"
        )
    if not 0 <= index < size:
        raise TypeMismatchError(
            f"Expected an index from 0 to {size - 1} in a selection from {type_of(source)}, found {index}; use the "
            "index of an existing member"
        )
    return index


def check_plain(value: Symbol, where: str) -> None:
    """Checks that a symbol contains no function."""
    if isinstance(value, Callee):
        raise TypeMismatchError(
            f"Expected a value in an argument of {where}, found a function of type {value.type}; call the function "
            "and pass its result"
        )
    if isinstance(value, Pack):
        for member in value.members:
            check_plain(member, where)


def check_takes_values(signature: FunctionType) -> None:
    """Checks that the parameter of a computation contains no function, so that users can call the computation.

    Raises:
      InvalidComputationError: If the parameter contains a function.
    """
    if signature.parameter is not None and contains_function(signature.parameter):
        raise InvalidComputationError(
            f"Expected a computation whose parameter contains no function, found a computation of type {signature}; "
            "call the computation in another federated_computation, which passes the function"
        )


def check_result(result: Symbol, declared: Type) -> None:
    """Checks the result of a computation against its declared type.

    Raises:
      InvalidComputationError: If the computation returns a function.
      TypeMismatchError: If the result does not match the declared type.
    """
    if _returns_function(result) or contains_function(declared):
        raise InvalidComputationError(
            f"Expected a computation whose result contains no function, found a result of type {declared}; call the "
            "function in the computation and return its result"
        )
    check_fits(result, declared, "result")


def _returns_function(symbol: Symbol) -> bool:
    return isinstance(symbol, Callee) or (isinstance(symbol, Pack) and any(map(_returns_function, symbol.members)))
