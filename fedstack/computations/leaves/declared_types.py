"""Checks the declared types of leaf computations against the signatures of their functions, for all decorators."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from fedstack.computations.types.language import StructType, Type, to_type
from fedstack.computations.types.type_structure import (
    contains_federated,
    contains_function,
    fields_of,
    has_negative_sizes,
)
from fedstack.computations.values.records import KeyedTuple, Record
from fedstack.errors import InvalidComputationError
from fedstack.foundations.value_text import describe

ParameterTypes = Sequence[object] | Mapping[str, object] | Type | type[np.generic] | None


def parameter_type(parameter_types: object, function: Callable[..., object], name: str) -> Type | None:
    """Returns the parameter type of a leaf computation, or `None` if its function has no parameters.

    Args:
      parameter_types: The declared types, in any form that `fedstack.python_computation` accepts.
      function: The function of the leaf computation.
      name: The name of the function in messages.

    Raises:
      InvalidComputationError: If the types do not match the function's parameters or are not plain types.
    """
    if parameter_types is not None and not isinstance(parameter_types, (Sequence, Mapping)):
        parameter_types = [parameter_types]  # a single type, as the language's own decorators accept
    types = cast("Sequence[object] | Mapping[str, object]", parameter_types or ())
    parameters = _signature(function, name).parameters
    spread = [f"**{key}" for key, found in parameters.items() if found.kind is found.VAR_KEYWORD]
    if spread:
        raise InvalidComputationError(
            f"Expected each parameter of {name!r} to accept one value, found {spread[0]}; declare each parameter by "
            "name"
        )
    if len(types) != len(parameters):
        raise InvalidComputationError(
            f"Expected one parameter type for each of the {len(parameters)} parameters of {name!r}, found "
            f"{len(types)}; {_advice_on_number(parameters, types, name)}"
        )
    if not types:
        return None
    if isinstance(types, Mapping):
        if set(types) != set(parameters):
            raise InvalidComputationError(
                f"Expected types for the parameters {list(parameters)} of {name!r}, found types for {list(types)}"
            )
        types = {parameter: types[parameter] for parameter in parameters}
    if len(types) == 1:
        _check_kinds(parameters, name, by_name=False)
        (only,) = types.values() if isinstance(types, Mapping) else types
        return plain_type(only, name)
    struct = cast(StructType, plain_type(types if isinstance(types, Mapping) else list(types), name))
    named = [member for member, _ in fields_of(struct) if member is not None]
    if named and set(named) != set(parameters):
        raise InvalidComputationError(
            f"Expected types for the parameters {list(parameters)} of {name!r}, found types for {named}"
        )
    _check_kinds(parameters, name, by_name=calls_by_name(function, struct))
    return struct


def _advice_on_number(
    parameters: Mapping[str, inspect.Parameter], types: "Sequence[object] | Mapping[str, object]", name: str
) -> str:
    """Returns advice for declarations whose number of types differs from the number of parameters."""
    found, number = list(parameters.values()), len(types)
    if isinstance(types, tuple) and types and isinstance(types[-1], list):
        return "a pair of a dtype and a shape is read as two types: write fl.TensorType(dtype, shape)"
    several = next((parameter for parameter in found if parameter.kind is parameter.VAR_POSITIONAL), None)
    if several is not None and number > len(found):
        # A list of several types is the same as one struct type, whose value *args would receive as a single argument.
        return f"{several} accepts only one value, like any other parameter: declare each parameter by name"
    if len(found) == 1 and isinstance(types, Mapping):
        return "for one parameter that is a structure, put the dictionary into a list, [{name: type, ...}]"
    given, rest = found[:number], found[number:]
    if not rest or any(parameter.default is parameter.empty for parameter in rest):
        return "pass a list with one type per parameter"
    advice = f"wrap it in a function without {rest[0].name!r} and any other parameters with a default"
    if not given or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in given):
        return advice
    names = ", ".join(parameter.name for parameter in given)
    return f"{advice}: lambda {names}: {name if name.isidentifier() else 'function'}({names})"


def _check_kinds(parameters: Mapping[str, inspect.Parameter], name: str, *, by_name: bool) -> None:
    """Checks that a function accepts each argument by name or, if `by_name` is False, by position."""
    for key, found in parameters.items():
        if not by_name and found.kind is found.KEYWORD_ONLY:
            raise InvalidComputationError(
                f"Expected {name!r} to accept its arguments by position, found the keyword-only parameter "
                f"{key!r}; " + ("remove the *" if len(parameters) == 1 else f"name the types: {{{key!r}: ..., ...}}")
            )
        if by_name and found.kind in (found.POSITIONAL_ONLY, found.VAR_POSITIONAL):
            raise InvalidComputationError(
                f"Expected {name!r} to accept all arguments by name, because the types have names, found the parameter "
                f"{found}; pass a list of types in the order of the parameters"
            )


def check_returns(function: object, name: str) -> None:
    """Checks that a function returns its result rather than an awaitable.

    Raises:
      InvalidComputationError: If the function is a coroutine function.
    """
    if inspect.iscoroutinefunction(function):
        raise InvalidComputationError(
            f"Expected a function that returns its result, found the coroutine function {name!r}; define it "
            "without async"
        )


def _signature(function: Callable[..., object], name: str) -> inspect.Signature:
    check_returns(function, name)
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidComputationError(
            f"Expected a Python function with a known signature, found {describe(function)}: {error}; wrap it in a "
            "Python function"
        ) from error


def plain_type(spec: object, name: str) -> Type:
    """Converts `spec` to a type of the language.

    Raises:
      InvalidComputationError: If `spec` is not a type, or is a type that contains federated or functional types.
    """
    try:
        result = to_type(spec)
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise InvalidComputationError(
            f"Expected types for {name!r} such as np.float32 or (np.float32, [3]), found {describe(spec)}: {error}"
        ) from error
    if has_negative_sizes(result):
        raise InvalidComputationError(
            f"Expected dimensions of 0 or more in types for {name!r}, found {result}; write None for an unknown "
            "dimension"
        )
    if contains_federated(result) or contains_function(result):
        raise InvalidComputationError(
            f"Expected plain types for {name!r}, found {result}; declare the type of a single client's value, and map "
            "the leaf computation over clients with federated_map inside a federated_computation"
        )
    return result


def unpacks(function: Callable[..., object], parameter: Type) -> bool:
    """Returns whether the members of a struct are passed to a function as separate arguments.

    A function with one parameter receives the struct itself. A function with several parameters, including parameters
    with a default, receives the members as arguments.
    """
    return isinstance(parameter, StructType) and len(inspect.signature(function).parameters) > 1


def calls_by_name(function: Callable[..., object], struct: StructType) -> bool:
    """Returns whether the members of an unpacked struct are passed by name.

    This is the case if all members have names, and the names are not those of the function's positional parameters in
    the same order.
    """
    names = [name for name, _ in fields_of(struct)]
    return None not in names and names != _positional_names(function)


def _positional_names(function: Callable[..., object]) -> list[str] | None:
    """Returns the names of a function's parameters, or `None` if some parameter cannot be passed by position."""
    parameters = inspect.signature(function).parameters.values()
    positional = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return [p.name for p in parameters] if positional else None


def plain_containers(value: object, leaf: Callable[[object], object] = lambda one: one) -> object:
    """Returns a value in containers that the language can read, instead of fedstack's records.

    Args:
      value: The value.
      leaf: Converts what is in the containers.
    """
    if isinstance(value, Record):
        members = tuple(plain_containers(member, leaf) for member in tuple(value))
        return members if None in value.__names__ else OrderedDict(zip(value.__names__, members))
    if isinstance(value, KeyedTuple):
        container = cast(Any, type(value).__bases__[1])
        return container._make([plain_containers(member, leaf) for member in cast("tuple[object, ...]", value)])
    if isinstance(value, (list, tuple)):
        members = [plain_containers(member, leaf) for member in cast("Sequence[object]", value)]
        if isinstance(value, list):
            return members
        kind = type(cast("tuple[object, ...]", value))
        make = cast("Callable[[list[object]], object]", getattr(kind, "_make", tuple))
        return make(members)
    if isinstance(value, dict):
        named = {name: plain_containers(member, leaf) for name, member in cast("dict[str, object]", value).items()}
        return OrderedDict(named) if isinstance(value, OrderedDict) else named
    return leaf(value)
