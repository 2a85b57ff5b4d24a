"""Writes computations in the language's intermediate representation, without its front end.

Conformance needs what the front end never emits: intrinsics that it does not offer, names that shadow each other,
functions that return functions, types that lie. An expression is a proto with its type; functions in here put
expressions together, and derive the types of intrinsics by the language's rules.
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
# These take an all-equal value as such; all others take it as one value per client, as the front end has it.
_KEEP_ALL_EQUAL = ("federated_map_all_equal", "federated_zip_at_clients", "generic_")


class Expression:
    """Something in the language's intermediate representation, with its type.

    Call it if it is a function; index it, by position or by name, if it is a struct.
    """

    def __init__(self, type_spec: Type, proto: computation_pb2.Computation) -> None:
        self.type = type_spec
        self.proto = proto

    def __call__(self, *arguments: "Operand") -> "Expression":
        if not isinstance(self.type, FunctionType):
            raise TypeError(f"Expected a function, found {self.type}")
        function = computation_pb2.Call(function=self.proto)
        if arguments:
            argument = as_expression(arguments[0]) if len(arguments) == 1 else struct(*arguments)
            function.argument.CopyFrom(argument.proto)
        return _expression(self.type.result, call=function)

    def __getitem__(self, key: int | str) -> "Expression":
        if not isinstance(self.type, StructType):
            raise TypeError(f"Expected a struct, found {self.type}")
        fields = fields_of(self.type)
        index = key if isinstance(key, int) else [name for name, _ in fields].index(key)
        return _expression(fields[index][1], selection=computation_pb2.Selection(source=self.proto, index=index))

    def __repr__(self) -> str:
        return f"<Expression of type {self.type}>"


Operand: TypeAlias = Expression | ConcreteComputation
# By number of parameters, so that the parameters of a lambda have a type.
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
    """Returns an operand as an expression; a computation becomes the block that stands for it."""
    if isinstance(operand, Expression):
        return operand
    operand.to_building_block()  # as the front end does it: a leaf learns that copies of it will be around
    return Expression(operand.type_signature, operand.to_proto())


def at_clients(member: object, all_equal: bool = False) -> FederatedType:
    """Returns the type of a value at clients."""
    return FederatedType(member, CLIENTS, all_equal)


def at_server(member: object) -> FederatedType:
    """Returns the type of a value at the server."""
    return FederatedType(member, SERVER)


def reference(name: str, type_spec: object) -> Expression:
    """Returns a reference to a name that something around it binds."""
    return _expression(to_type(type_spec), reference=computation_pb2.Reference(name=name))


def struct(*members: Operand, **named: Operand) -> Expression:
    """Returns a struct of unnamed members, then of named ones."""
    pairs = [("", as_expression(member)) for member in members]
    pairs += [(name, as_expression(member)) for name, member in named.items()]
    elements = [computation_pb2.Struct.Element(name=name, value=member.proto) for name, member in pairs]
    types = [(name, member.type) if name else member.type for name, member in pairs]
    return _expression(StructType(types), struct=computation_pb2.Struct(element=elements))


def literal(value: Any, dtype: type[Any], shape: Sequence[int] = ()) -> Expression:
    """Returns a literal of a tensor type; the value is of exactly that type."""
    tensor = TensorType(dtype, shape)
    array = array_to_proto(value, tensor.dtype, tensor.shape, path="the literal", as_list=True)
    return _expression(tensor, literal=computation_pb2.Literal(value=array))


def data(uri: str, type_spec: object) -> Expression:
    """Returns a `data` block that only names the data."""
    return _expression(to_type(type_spec), data=computation_pb2.Data(uri=uri))


def block(local_values: Sequence[tuple[str, Operand]], result: Expression) -> Expression:
    """Returns a block: later locals see earlier ones, and one name may be bound twice."""
    bound = [computation_pb2.Block.Local(name=name, value=as_expression(value).proto) for name, value in local_values]
    return _expression(result.type, block=computation_pb2.Block(local=bound, result=result.proto))


def function(body: Body, *parameter_types: object, name: str | None = None) -> Expression:
    """Returns a lambda.

    Args:
      body: Gets one expression per parameter and returns the result.
      *parameter_types: With one, that is the parameter's type; with several the parameter is a struct, named after the
        parameters of `body`.
      name: What the lambda calls its parameter; a fresh name by default.
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
    """Returns an intrinsic that is not called yet."""
    return _expression(FunctionType(parameter, result), intrinsic=computation_pb2.Intrinsic(uri=uri))


def intrinsic(uri: str, *operands: Operand, result_type: Type | None = None) -> Expression:
    """Returns a call of an intrinsic.

    Args:
      uri: Its name in the intermediate representation.
      *operands: Its arguments, functions among them.
      result_type: The declared result type; by default what the intrinsic's rule derives.
    """
    arguments = [as_expression(operand) for operand in operands]
    types = [argument.type for argument in arguments]
    if not uri.startswith(_KEEP_ALL_EQUAL):
        types = [at_clients(_member(t)) if is_placed_at_clients(t) else t for t in types]
    result = find_intrinsic(uri).rule(types) if result_type is None else result_type
    parameter = types[0] if len(types) == 1 else StructType(types)
    return intrinsic_function(uri, parameter, result)(*arguments)


def generic_zero(type_spec: object) -> Expression:
    """Returns the intrinsic that is a value: zero of a type."""
    return _expression(to_type(type_spec), intrinsic=computation_pb2.Intrinsic(uri="generic_zero"))


def _member(type_spec: Type) -> Type:
    assert isinstance(type_spec, FederatedType)
    return type_spec.member


def computation(body: Body, *parameter_types: object) -> ConcreteComputation:
    """Returns a computation that contexts and executors take; arguments as for `function`."""
    return as_computation(function(body, *parameter_types))


def as_computation(expression: Expression) -> ConcreteComputation:
    """Returns the computation of a functional expression."""
    assert isinstance(expression.type, FunctionType)
    return ConcreteComputation(
        computation_proto=expression.proto, context_stack=get_context_stack(), annotated_type=expression.type
    )
