"""Defines the argument layouts and the typing rules of the language's intrinsics.

The typing rules are the same as in the language's intrinsic definitions. They are checked again because a computation
may come from an untrusted source, and a declared type that violates the rule could silently produce a wrong result.
"""

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from fedstack.computations.types.language import (
    CLIENTS,
    SERVER,
    FederatedType,
    FunctionType,
    PlacementLiteral,
    SequenceType,
    StructType,
    TensorType,
    Type,
)
from fedstack.computations.types.type_structure import TypeMemo, contains_federated, fields_of, struct_of, tensor_leaves
from fedstack.computations.values.tensor_values import kind_of_dtype
from fedstack.errors import InvalidComputationError, TypeMismatchError, UnsupportedIntrinsicError
from fedstack.foundations.error_text import name_text

Rule = Callable[[Sequence[Type]], Type]


@attrs.frozen
class Intrinsic:
    """One intrinsic of the language.

    Attributes:
      uri: The name of the intrinsic in the IR.
      functions: The positions of the functional arguments.
      arity: The number of arguments. A single argument is passed directly, and several are passed in a struct.
      rule: A function that derives the result type from the argument types, or raises an error.
      aggregates: Whether the intrinsic aggregates clients' values on the server.
    """

    uri: str
    functions: tuple[int, ...]
    arity: int
    rule: Rule
    aggregates: bool = False


def _expect(condition: bool, wanted: str, found: object) -> None:
    if not condition:
        raise TypeMismatchError(f"Expected {wanted}, found {found}")


def _federated(type_spec: Type, placement: object) -> FederatedType:
    if not isinstance(type_spec, FederatedType) or type_spec.placement is not placement:
        raise TypeMismatchError(f"Expected a value placed at {placement}, found a value of type {type_spec}")
    return type_spec


def _function(type_spec: Type, *parameters: Type) -> Type:
    """Checks that a functional argument accepts the given parameters, and returns the function's result type."""
    if not isinstance(type_spec, FunctionType):
        raise TypeMismatchError(f"Expected a function, found {type_spec}")
    takes = type_spec.parameter
    if not parameters:
        _expect(takes is None, "a function without parameters", type_spec)
    elif len(parameters) == 1:
        fits = takes is not None and takes.is_assignable_from(parameters[0])
        _expect(fits, f"a function of {parameters[0]}", type_spec)
    else:
        fields = fields_of(takes) if isinstance(takes, StructType) else ()
        fits = len(fields) == len(parameters) and all(f.is_assignable_from(p) for (_, f), p in zip(fields, parameters))
        _expect(fits, f"a function of <{','.join(map(str, parameters))}>", type_spec)
    return type_spec.result


def _numeric(type_spec: Type, kinds: str, wanted: str) -> None:
    try:
        leaves = [leaf for _, leaf in tensor_leaves(type_spec)]
    except InvalidComputationError:
        leaves = []
        _expect(False, wanted, type_spec)
    _expect(all(kind_of_dtype(leaf.dtype) in kinds for leaf in leaves), wanted, type_spec)


def _at_server(member: Type) -> Type:
    return FederatedType(member, SERVER)


def _aggregates(kinds: str, wanted: str) -> Rule:
    """Returns the rule for aggregations with one argument, whose result has the type of each client's value."""

    def rule(args: Sequence[Type]) -> Type:
        member = _federated(args[0], CLIENTS).member
        _numeric(member, kinds, wanted)
        return _at_server(member)

    return rule


_sum = _aggregates("ifc", "numbers to sum")
_mean = _aggregates("fc", "floating-point or complex numbers for a mean")
_extreme = _aggregates("if", "integers or floating-point numbers")


def _weighted_mean(args: Sequence[Type]) -> Type:
    weight = _federated(args[1], CLIENTS).member
    scalar = isinstance(weight, TensorType) and weight.shape == () and kind_of_dtype(weight.dtype) in "if"
    _expect(scalar, "a scalar number as the weight", weight)
    return _mean(args)


def _secure_sum(args: Sequence[Type]) -> Type:
    member = _federated(args[0], CLIENTS).member
    _numeric(member, "i", "integers to sum securely")
    _numeric(args[1], "i", "integers as the bound")
    leaves = sum(1 for _ in tensor_leaves(member))
    bounds = sum(1 for _ in tensor_leaves(args[1]))
    single = isinstance(args[1], TensorType)
    _expect(
        single or bounds == leaves, f"one bound, or one bound for each of the {leaves} tensors of {member}", args[1]
    )
    return _at_server(member)


def _aggregate(args: Sequence[Type]) -> Type:
    value, zero, accumulate, merge, report = args
    member = _federated(value, CLIENTS).member
    accumulated = _function(accumulate, zero, member)
    _expect(zero.is_assignable_from(accumulated), f"accumulate to return {zero}", accumulated)
    merged = _function(merge, accumulated, accumulated)
    _expect(zero.is_assignable_from(merged), f"merge to return {zero}", merged)
    return _at_server(_function(report, merged))


def _select(args: Sequence[Type]) -> Type:
    keys, max_key, value, function = args
    _expect(str(_federated(keys, CLIENTS).member).startswith("int32["), "keys of type int32[N]", keys)
    _expect(str(_federated(max_key, SERVER).member) == "int32", "an int32 as max_key", max_key)
    picked = _function(function, _federated(value, SERVER).member, _federated(max_key, SERVER).member)
    return FederatedType(SequenceType(picked), CLIENTS)


def _map(args: Sequence[Type]) -> Type:
    return FederatedType(_function(args[0], _federated(args[1], CLIENTS).member), CLIENTS)


def _map_all_equal(args: Sequence[Type]) -> Type:
    value = _federated(args[1], CLIENTS)
    _expect(value.all_equal, "an all-equal value", value)
    return FederatedType(_function(args[0], value.member), CLIENTS, True)


def _apply(args: Sequence[Type]) -> Type:
    return _at_server(_function(args[0], _federated(args[1], SERVER).member))


def _zip(placement: PlacementLiteral) -> Rule:
    def rule(args: Sequence[Type]) -> Type:
        all_equal = True
        count = 0

        def strip(type_spec: Type) -> Type:
            nonlocal all_equal, count
            if isinstance(type_spec, StructType):
                return struct_of([(name, strip(member)) for name, member in fields_of(type_spec)])
            federated = _federated(type_spec, placement)
            all_equal = all_equal and federated.all_equal
            count += 1
            return federated.member

        member = strip(args[0])
        _expect(count > 0, f"at least one value placed at {placement}", args[0])
        return FederatedType(member, placement, all_equal)

    return rule


def _generic_binary(args: Sequence[Type]) -> Type:
    left, right = args
    same = left.is_equivalent_to(right)
    _expect(same, f"two arguments of type {left}", right)
    member = left.member if isinstance(left, FederatedType) else left
    _numeric(member, "ifc", "numbers")
    return left


def _generic_divide(args: Sequence[Type]) -> Type:
    return quotient_type(_generic_binary(args))


def quotient_type(type_spec: Type) -> Type:
    """Returns the type of a quotient. Dividing integers yields float64, as in TensorFlow's true division."""
    if isinstance(type_spec, FederatedType):
        return FederatedType(quotient_type(type_spec.member), type_spec.placement, type_spec.all_equal)
    if isinstance(type_spec, StructType):
        return struct_of([(name, quotient_type(member)) for name, member in fields_of(type_spec)])
    if isinstance(type_spec, TensorType) and kind_of_dtype(type_spec.dtype) == "i":
        return TensorType(np.float64, type_spec.shape)
    return type_spec


def _sequence(type_spec: Type) -> SequenceType:
    if not isinstance(type_spec, SequenceType):
        raise TypeMismatchError(f"Expected a sequence, found {type_spec}")
    return type_spec


def _sequence_reduce(args: Sequence[Type]) -> Type:
    sequence, zero, function = args
    result = _function(function, zero, _sequence(sequence).element)
    _expect(zero.is_assignable_from(result), f"the reduction to return {zero}", result)
    return result


def _sequence_sum(args: Sequence[Type]) -> Type:
    element = _sequence(args[0]).element
    _numeric(element, "ifc", "a sequence of numbers")
    return element


def _plain(type_spec: Type) -> Type:
    _expect(not contains_federated(type_spec), "a value without federated parts", type_spec)
    return type_spec


_TABLE = [
    Intrinsic("federated_aggregate", (2, 3, 4), 5, _aggregate, aggregates=True),
    Intrinsic("federated_apply", (0,), 2, _apply),
    Intrinsic("federated_broadcast", (), 1, lambda a: FederatedType(_federated(a[0], SERVER).member, CLIENTS, True)),
    Intrinsic("federated_eval_at_clients", (0,), 1, lambda a: FederatedType(_function(a[0]), CLIENTS)),
    Intrinsic("federated_eval_at_server", (0,), 1, lambda a: _at_server(_function(a[0]))),
    Intrinsic("federated_map", (0,), 2, _map),
    Intrinsic("federated_map_all_equal", (0,), 2, _map_all_equal),
    Intrinsic("federated_max", (), 1, _extreme, aggregates=True),
    Intrinsic("federated_mean", (), 1, _mean, aggregates=True),
    Intrinsic("federated_min", (), 1, _extreme, aggregates=True),
    Intrinsic("federated_secure_select", (3,), 4, _select),
    Intrinsic("federated_secure_sum", (), 2, _secure_sum, aggregates=True),
    Intrinsic("federated_secure_sum_bitwidth", (), 2, _secure_sum, aggregates=True),
    Intrinsic("federated_select", (3,), 4, _select),
    Intrinsic("federated_sum", (), 1, _sum, aggregates=True),
    Intrinsic("federated_value_at_clients", (), 1, lambda a: FederatedType(_plain(a[0]), CLIENTS, True)),
    Intrinsic("federated_value_at_server", (), 1, lambda a: _at_server(_plain(a[0]))),
    Intrinsic("federated_weighted_mean", (), 2, _weighted_mean, aggregates=True),
    Intrinsic("federated_zip_at_clients", (), 1, _zip(CLIENTS)),
    Intrinsic("federated_zip_at_server", (), 1, _zip(SERVER)),
    Intrinsic("generic_divide", (), 2, _generic_divide),
    Intrinsic("generic_multiply", (), 2, _generic_binary),
    Intrinsic("generic_plus", (), 2, _generic_binary),
    Intrinsic("sequence_map", (0,), 2, lambda a: SequenceType(_function(a[0], _sequence(a[1]).element))),
    Intrinsic("sequence_reduce", (2,), 3, _sequence_reduce),
    Intrinsic("sequence_sum", (), 1, _sequence_sum),
]
INTRINSICS = {intrinsic.uri: intrinsic for intrinsic in _TABLE}
GENERIC_ZERO = "generic_zero"
_checked: TypeMemo[frozenset[str]] = TypeMemo()  # for each type, the intrinsics whose rules it has passed


def find_intrinsic(uri: str) -> Intrinsic:
    """Returns the intrinsic named `uri`.

    Raises:
      UnsupportedIntrinsicError: If the language has no intrinsic with this name.
    """
    found = INTRINSICS.get(uri)
    if found is None:
        raise UnsupportedIntrinsicError(
            f"Expected an intrinsic of the language, found {name_text(uri)!r}; use one of "
            f"{', '.join(sorted(INTRINSICS))}"
        )
    return found


def checked_type(intrinsic: Intrinsic, declared: Type) -> FunctionType:
    """Returns the declared type of an intrinsic, after checking the type against the intrinsic's rule.

    Raises:
      TypeMismatchError: If the declared type violates the rule.
    """
    known = _checked.get(declared) or frozenset()
    if not isinstance(declared, FunctionType) or declared.parameter is None:
        raise TypeMismatchError(
            f"Expected {intrinsic.uri} to be declared as a function with a parameter, found {declared}; correct the "
            "declared type"
        )
    if intrinsic.uri in known:
        return declared
    arguments = argument_types(intrinsic, declared.parameter)
    try:
        derived = intrinsic.rule(arguments)
    except (TypeMismatchError, ValueError) as error:  # the language rejects some types, such as nested placements
        raise TypeMismatchError(
            f"The declared type {declared} of {intrinsic.uri} is invalid: {error}; correct the declared type"
        ) from None
    if not declared.result.is_assignable_from(derived) and not same_without_names(declared.result, derived):
        raise TypeMismatchError(
            f"Expected {intrinsic.uri} to be declared as returning {derived}, found {declared}; correct the "
            "declared type"
        )
    _checked.put(declared, known | {intrinsic.uri})
    return declared


def argument_types(intrinsic: Intrinsic, parameter: Type) -> Sequence[Type]:
    """Returns the types of an intrinsic's arguments, given the type of its parameter."""
    if intrinsic.arity == 1:
        return [parameter]
    if not isinstance(parameter, StructType) or len(fields_of(parameter)) != intrinsic.arity:
        raise TypeMismatchError(
            f"Expected a struct of {intrinsic.arity} arguments for {intrinsic.uri}, found {parameter}; pass "
            "one value for each argument"
        )
    return [member for _, member in fields_of(parameter)]


def same_without_names(left: Type, right: Type) -> bool:
    """Returns whether `right` can be assigned to `left` if names are ignored.

    The result of an intrinsic may lose the names in the types of its arguments.
    """
    if isinstance(left, FederatedType) and isinstance(right, FederatedType):
        same_place = left.placement is right.placement and (right.all_equal or not left.all_equal)
        return same_place and same_without_names(left.member, right.member)
    if isinstance(left, SequenceType) and isinstance(right, SequenceType):
        return same_without_names(left.element, right.element)
    if isinstance(left, StructType) and isinstance(right, StructType):
        ours, theirs = fields_of(left), fields_of(right)
        return len(ours) == len(theirs) and all(same_without_names(a, b) for (_, a), (_, b) in zip(ours, theirs))
    return left.is_assignable_from(right)
