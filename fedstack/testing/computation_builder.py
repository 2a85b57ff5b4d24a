"""Builds computations in the language's intermediate representation, without the front end.

The conformance suites need constructs that the front end never emits: intrinsics that it does not offer, names that
shadow each other, functions that return functions, and wrong type declarations. An expression is a proto with its type.
The functions in this module combine expressions, and derive the types of intrinsics by the language's rules.
"""

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from fedstack.computations.codec.arrays import array_to_proto
from fedstack.computations.plan.intrinsics import find_intrinsic
from fedstack.computations.types.language import (
    CLIENTS,
    SERVER,
    ConcreteComputation,
    FederatedType,
    FunctionType,
    StructType,
    TensorType,
    Type,
    computation_pb2,
    get_context_stack,
    to_type,
)
from fedstack.computations.types.type_structure import fields_of, is_placed_at_clients

_numbers = itertools.count(1)
# These intrinsics accept all-equal values. All others treat an all-equal value as one value per client, as the front
# end does.
_KEEP_ALL_EQUAL = ("federated_map_all_equal", "federated_zip_at_clients", "generic_")


class Expression:
    """An expression of the language's intermediate representation, with its type.

    An expression that is a function can be called. An expression that is a struct can be indexed by position or by
    name.
    """

    def __init__(self, type_spec: Type, proto: computation_pb2.Computation) -> None:
        self.type = type_spec
        self.proto = proto

    def __call__(self, *arguments: "Operand") -> "Expression":
        if not isinstance(self.type, FunctionType):
            raise TypeError(f"Expected a function to call, found an expression of type {self.type}")
        function = computation_pb2.Call(function=self.proto)
        if arguments:
            argument = as_expression(arguments[0]) if len(arguments) == 1 else struct(*arguments)
            function.argument.CopyFrom(argument.proto)
        return _expression(self.type.result, call=function)

    def __getitem__(self, key: int | str) -> "Expression":
        if not isinstance(self.type, StructType):
            raise TypeError(f"Expected a struct to index, found an expression of type {self.type}")
        fields = fields_of(self.type)
        index = key if isinstance(key, int) else [name for name, _ in fields].index(key)
        return _expression(fields[index][1], selection=computation_pb2.Selection(source=self.proto, index=index))

    def __repr__(self) -> str:
        return f"<Expression of type {self.type}>"


Operand: TypeAlias = Expression | ConcreteComputation
# One alternative per number of parameters, so that type checkers infer the types of a lambda's parameters.
Body: TypeAlias = (
    Callable[[], Operand]
    | Callable[[Expression], Operand]
    | Callable[[Expression, Expression], Operand]
    | Callable[[Expression, Expression, Expression], Operand]
    | Callable[[Expression, Expression, Expression, Expression], Operand]
)


def _expression(type_spec: Type, **kind: Any) -> Expression:
    return Expression(type_spec, computation_pb2.Computation(type=type_spec.to_proto(), **kind))


def as_expression(operand: Operand) -> Expression:
    """Returns an operand as an expression; a computation is converted to its building block."""
    if isinstance(operand, Expression):
        return operand
    operand.to_building_block()  # as the front end does: it tells a leaf that copies of the leaf will exist
    return Expression(operand.type_signature, operand.to_proto())


def at_clients(member: object, all_equal: bool = False) -> FederatedType:
    """Returns the type of a value placed at clients."""
    return FederatedType(member, CLIENTS, all_equal)


def at_server(member: object) -> FederatedType:
    """Returns the type of a value placed at the server."""
    return FederatedType(member, SERVER)


def reference(name: str, type_spec: object) -> Expression:
    """Returns a reference to a name that an enclosing expression binds."""
    return _expression(to_type(type_spec), reference=computation_pb2.Reference(name=name))


def struct(*members: Operand, **named: Operand) -> Expression:
    """Returns a struct of the unnamed members, followed by the named members."""
    pairs = [("", as_expression(member)) for member in members]
    pairs += [(name, as_expression(member)) for name, member in named.items()]
    elements = [computation_pb2.Struct.Element(name=name, value=member.proto) for name, member in pairs]
    types = [(name, member.type) if name else member.type for name, member in pairs]
    return _expression(StructType(types), struct=computation_pb2.Struct(element=elements))


def literal(value: Any, dtype: type[Any], shape: Sequence[int] = ()) -> Expression:
    """Returns a literal of a tensor type; the value must have exactly this type."""
    tensor = TensorType(dtype, shape)
    array = array_to_proto(value, tensor.dtype, tensor.shape, path="the literal", as_list=True)
    return _expression(tensor, literal=computation_pb2.Literal(value=array))


def data(uri: str, type_spec: object) -> Expression:
    """Returns a `data` block that refers to the data by its URI."""
    return _expression(to_type(type_spec), data=computation_pb2.Data(uri=uri))


def block(local_values: Sequence[tuple[str, Operand]], result: Expression) -> Expression:
    """Returns a block. Later locals can refer to earlier ones, and a name may be bound more than once."""
    bound = [computation_pb2.Block.Local(name=name, value=as_expression(value).proto) for name, value in local_values]
    return _expression(result.type, block=computation_pb2.Block(local=bound, result=result.proto))


def function(body: Body, *parameter_types: object, name: str | None = None) -> Expression:
    """Returns a lambda.

    Args:
      body: A function of one expression per parameter that returns the lambda's result.
      *parameter_types: The types of the parameters. Several types make the lambda's parameter a struct whose members
        are named after the parameters of `body`.
      name: The name of the lambda's parameter. By default a fresh name.
    """
    chosen = f"p{next(_numbers)}" if name is None else name
    call = cast("Callable[..., Operand]", body)
    if not parameter_types:
        result, parameter = as_expression(call()), None
    elif len(parameter_types) == 1:
        parameter = to_type(parameter_types[0])
        result = as_expression(call(reference(chosen, parameter)))
    else:
        names = list(inspect.signature(call).parameters)
        parameter = StructType(list(zip(names, map(to_type, parameter_types))))
        whole = reference(chosen, parameter)
        result = as_expression(call(*(whole[position] for position in range(len(names)))))
    signature = FunctionType(parameter, result.type)
    # `lambda` is a keyword, so the field has to be named in a string.
    kind = {"lambda": computation_pb2.Lambda(parameter_name=chosen if parameter else "", result=result.proto)}
    return _expression(signature, **kind)


def intrinsic_function(uri: str, parameter: Type, result: Type) -> Expression:
    """Returns an intrinsic as a function, without calling the intrinsic."""
    return _expression(FunctionType(parameter, result), intrinsic=computation_pb2.Intrinsic(uri=uri))


def intrinsic(uri: str, *operands: Operand, result_type: Type | None = None) -> Expression:
    """Returns a call of an intrinsic.

    Args:
      uri: The URI of the intrinsic in the intermediate representation.
      *operands: The arguments of the intrinsic, including functions.
      result_type: The declared result type. By default, the type that the intrinsic's rule derives.
    """
    arguments = [as_expression(operand) for operand in operands]
    types = [argument.type for argument in arguments]
    if not uri.startswith(_KEEP_ALL_EQUAL):
        types = [at_clients(_member(t)) if is_placed_at_clients(t) else t for t in types]
    result = find_intrinsic(uri).rule(types) if result_type is None else result_type
    parameter = types[0] if len(types) == 1 else StructType(types)
    return intrinsic_function(uri, parameter, result)(*arguments)


def generic_zero(type_spec: object) -> Expression:
    """Returns the intrinsic `generic_zero`, which is a value and not a function: the zero of a type."""
    return _expression(to_type(type_spec), intrinsic=computation_pb2.Intrinsic(uri="generic_zero"))


def _member(type_spec: Type) -> Type:
    assert isinstance(type_spec, FederatedType)
    return type_spec.member


def computation(body: Body, *parameter_types: object) -> ConcreteComputation:
    """Returns a computation that contexts and executors accept. The arguments are those of `function`."""
    return as_computation(function(body, *parameter_types))


def as_computation(expression: Expression) -> ConcreteComputation:
    """Returns a functional expression as a computation."""
    assert isinstance(expression.type, FunctionType)
    return ConcreteComputation(
        computation_proto=expression.proto, context_stack=get_context_stack(), annotated_type=expression.type
    )
