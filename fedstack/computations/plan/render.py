"""Writes a traced computation as a computation of the language, so that it can be printed, tested and sent.

The result is one lambda over one flat block. The captures of functions in federated intrinsics become arguments, for
executors that do not support captures. Functions in sequence intrinsics keep references to names in the enclosing
scope, because they receive only the elements of a sequence.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from fedstack.computations.codec.arrays import array_to_proto
from fedstack.computations.plan.graph import (
    Callee,
    Constant,
    DataNode,
    Function,
    IntrinsicCall,
    LeafCall,
    Node,
    Pack,
    Selection,
    Symbol,
)
from fedstack.computations.plan.intrinsics import INTRINSICS
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
    computation_pb2,
)
from fedstack.computations.types.type_structure import fields_of, struct_of
from fedstack.errors import InvalidComputationError

Computation = computation_pb2.Computation


def render(function: Function) -> Computation:
    """Returns a traced function as a computation of the language.

    Raises:
      InvalidComputationError: If the function contains a constant that cannot be written as a literal.
    """
    return _Renderer().function(function, {})


def reference(name: str, type_spec: Type) -> Computation:
    """Returns a reference to a bound name."""
    return Computation(type=type_spec.to_proto(), reference=computation_pb2.Reference(name=name))


def struct(members: Sequence[Computation], names: Sequence[str | None] | None = None) -> Computation:
    """Returns a struct of computations."""
    labels = [None] * len(members) if names is None else names
    type_spec = struct_of([(name, Type.from_proto(member.type)) for name, member in zip(labels, members)])
    elements = [computation_pb2.Struct.Element(name=n or "", value=m) for n, m in zip(labels, members)]
    return Computation(type=type_spec.to_proto(), struct=computation_pb2.Struct(element=elements))


def selection(source: Computation, index: int) -> Computation:
    """Returns the selection of a struct's member."""
    if source.WhichOneof("computation") == "struct":
        return source.struct.element[index].value
    type_spec = source.type.struct.element[index].value
    return Computation(type=type_spec, selection=computation_pb2.Selection(source=source, index=index))


def call(function: Computation, argument: Computation | None) -> Computation:
    """Returns the call of a function."""
    return Computation(
        type=function.type.function.result, call=computation_pb2.Call(function=function, argument=argument)
    )


def function_of(parameter_name: str, parameter: Type | None, result: Computation) -> Computation:
    """Returns a lambda with the given parameter and result."""
    type_spec = FunctionType(parameter, Type.from_proto(result.type))
    body = computation_pb2.Lambda(parameter_name=parameter_name if parameter is not None else "", result=result)
    keyword: dict[str, Any] = {"lambda": body}  # `lambda` is a reserved word in Python
    return Computation(type=type_spec.to_proto(), **keyword)


def block(locals_: Sequence[computation_pb2.Block.Local], result: Computation) -> Computation:
    """Returns a block, or `result` itself if there are no locals."""
    if not locals_:
        return result
    return Computation(type=result.type, block=computation_pb2.Block(local=locals_, result=result))


def call_intrinsic(
    uri: str, arguments: Sequence[Computation], result: Type, declared: Sequence[Type] | None = None
) -> Computation:
    """Returns the call of an intrinsic. A single argument is passed directly, and several are passed in a struct.

    Args:
      uri: The name of the intrinsic.
      arguments: The arguments.
      result: The result type.
      declared: The types that the intrinsic declares for arguments that are not functions. By default, these are the
        arguments' own types.
    """
    argument = arguments[0] if len(arguments) == 1 else struct(arguments)
    parameter = Type.from_proto(argument.type)
    if declared and len(arguments) == 1:
        (parameter,) = declared
    elif declared:
        functions = INTRINSICS[uri].functions
        others = iter(declared)
        own = fields_of(cast(StructType, parameter))
        parameter = StructType([t if index in functions else next(others) for index, (_, t) in enumerate(own)])
    type_spec = FunctionType(parameter, result)
    return call(Computation(type=type_spec.to_proto(), intrinsic=computation_pb2.Intrinsic(uri=uri)), argument)


class _Renderer:
    """Renders one computation. Names are unique within the whole computation."""

    def __init__(self) -> None:
        self._count = 0

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def function(self, function: Function, bound: dict[Node, Computation]) -> Computation:
        """Returns the lambda of a function whose captures are bound."""
        if function.parameter is None:
            body = self._body(function, None, bound)
            return function_of("", None, body)
        name = self._name("arg")
        parameter = function.parameter.type
        return function_of(name, parameter, self._body(function, reference(name, parameter), bound))

    def _body(self, function: Function, argument: Computation | None, bound: dict[Node, Computation]) -> Computation:
        scope = dict(bound)
        if function.parameter is not None and argument is not None:
            scope[function.parameter] = argument
        locals_: list[computation_pb2.Block.Local] = []
        for node in function.nodes:
            value = self._node(node, scope)
            if isinstance(node, (Selection, Constant)):
                scope[node] = value
                continue
            name = self._name("v")
            locals_.append(computation_pb2.Block.Local(name=name, value=value))
            scope[node] = reference(name, Type.from_proto(value.type))
        return block(locals_, self.symbol(function.result, scope))

    def symbol(self, symbol: Symbol, scope: dict[Node, Computation]) -> Computation:
        """Returns the expression for a symbol whose nodes are bound."""
        if isinstance(symbol, Pack):
            return struct([self.symbol(member, scope) for member in symbol.members], symbol.names)
        if isinstance(symbol, Callee):
            raise InvalidComputationError(f"Expected a value, found a function of type {symbol.type}; call it first")
        if symbol not in scope and isinstance(symbol, Selection):
            scope[symbol] = selection(self.symbol(symbol.source, scope), symbol.position)
        return scope[symbol]

    def _node(self, node: Node, scope: dict[Node, Computation]) -> Computation:
        if isinstance(node, Selection):
            return selection(self.symbol(node.source, scope), node.position)
        if isinstance(node, Constant):
            return literal(node.payload, node.type)
        if isinstance(node, DataNode):
            return node.computation
        if isinstance(node, LeafCall):
            argument = None if node.argument is None else self.symbol(node.argument, scope)
            return call(node.computation, argument)
        if isinstance(node, IntrinsicCall):
            return self._intrinsic(node, scope)
        raise InvalidComputationError(f"Expected a node that can be rendered, found {node!r}")

    def _intrinsic(self, node: IntrinsicCall, scope: dict[Node, Computation]) -> Computation:
        arguments = [self.symbol(argument, scope) for argument in node.arguments]
        captures = list(dict.fromkeys(capture for function in node.functions for capture in function.captures))
        if not captures or node.uri.startswith("sequence_"):
            functions = [self.function(function, scope) for function in node.functions]
            return call_intrinsic(node.uri, in_order(node.uri, functions, arguments), node.type, node.types)
        captured = [self.symbol(capture, scope) for capture in captures]
        if node.uri == "federated_aggregate":
            return self._aggregate(node, arguments, captures, captured)
        placement = SERVER if node.uri in ("federated_apply", "federated_eval_at_server") else CLIENTS
        if node.uri in ("federated_select", "federated_secure_select"):
            keys, max_key, value = arguments
            value = _zip([value, *(_place(c, SERVER) for c in captured)], SERVER)
            function = self._select_function(node.functions[0], value, captures)
            return call_intrinsic(node.uri, [keys, max_key, value, function], node.type)
        zipped = _zip([*arguments, *(_place(c, placement) for c in captured)], placement)
        function = self._open_function(node.functions[0], zipped, captures, len(arguments))
        uri = {"federated_eval_at_clients": "federated_map", "federated_eval_at_server": "federated_apply"}
        return call_intrinsic(uri.get(node.uri, node.uri), [function, zipped], node.type)

    def _open_function(
        self, function: Function, zipped: Computation, captures: Sequence[Node], offset: int
    ) -> Computation:
        """Returns a capture-free function of a struct with the original argument, if any, and the captures."""
        member = Type.from_proto(zipped.type.federated.member)
        name = self._name("arg")
        whole = reference(name, member)
        bound = {capture: selection(whole, offset + i) for i, capture in enumerate(captures)}
        argument = selection(whole, 0) if offset else None
        return function_of(name, member, self._body(function, argument, bound))

    def _select_function(self, function: Function, value: Computation, captures: Sequence[Node]) -> Computation:
        name = self._name("arg")
        parameter = function.parameter.type if function.parameter else None
        if not isinstance(parameter, StructType):
            raise InvalidComputationError(f"Expected a function of a struct, found a function of {parameter}")
        key = fields_of(parameter)[1][1]
        whole = reference(name, StructType([Type.from_proto(value.type.federated.member), key]))
        packed = selection(whole, 0)
        bound = {capture: selection(packed, 1 + i) for i, capture in enumerate(captures)}
        argument = struct([selection(packed, 0), selection(whole, 1)])
        return function_of(name, Type.from_proto(whole.type), self._body(function, argument, bound))

    def _aggregate(
        self,
        node: IntrinsicCall,
        arguments: Sequence[Computation],
        captures: Sequence[Node],
        captured: list[Computation],
    ) -> Computation:
        """Renders an aggregation. The captures of its functions are passed together with the accumulator."""
        value, zero = arguments
        accumulate, merge, report = node.functions
        state = struct([zero, *captured])
        value_type, zero_type = node.types
        state_type = StructType([zero_type, *(Type.from_proto(capture.type) for capture in captured)])
        member = Type.from_proto(value.type.federated.member)

        def step(function: Function, other: Type, read: Callable[[Computation], Computation]) -> Computation:
            name = self._name("arg")
            whole = reference(name, StructType([state_type, other]))
            left = selection(whole, 0)
            bound = {capture: selection(left, 1 + i) for i, capture in enumerate(captures)}
            argument = struct([selection(left, 0), read(selection(whole, 1))])
            body = self._body(function, argument, bound)
            return function_of(name, Type.from_proto(whole.type), struct([body, *bound.values()]))

        name = self._name("arg")
        whole = reference(name, state_type)
        bound = {capture: selection(whole, 1 + i) for i, capture in enumerate(captures)}
        finish = function_of(name, state_type, self._body(report, selection(whole, 0), bound))
        functions = [
            step(accumulate, member, lambda other: other),
            step(merge, state_type, lambda other: selection(other, 0)),
            finish,
        ]
        return call_intrinsic(node.uri, [value, state, *functions], node.type, [value_type, state_type])


def in_order(uri: str, functions: Sequence[Computation], arguments: Sequence[Computation]) -> list[Computation]:
    """Returns the arguments of an intrinsic in the order of its parameters, from functions and other arguments."""
    positions = INTRINSICS[uri].functions
    rest = iter(arguments)
    return [functions[positions.index(i)] if i in positions else next(rest) for i in range(INTRINSICS[uri].arity)]


def _place(value: Computation, placement: PlacementLiteral) -> Computation:
    at_clients = placement is CLIENTS
    type_spec = FederatedType(Type.from_proto(value.type), placement, True)
    return call_intrinsic(f"federated_value_at_{'clients' if at_clients else 'server'}", [value], type_spec)


def _zip(values: Sequence[Computation], placement: PlacementLiteral) -> Computation:
    types = [Type.from_proto(value.type) for value in values]
    members = [t.member for t in types if isinstance(t, FederatedType)]
    all_equal = all(isinstance(t, FederatedType) and t.all_equal for t in types)
    at = "clients" if placement is CLIENTS else "server"
    return call_intrinsic(
        f"federated_zip_at_{at}", [struct(values)], FederatedType(StructType(members), placement, all_equal)
    )


def literal(payload: object, type_spec: Type) -> Computation:
    """Returns a constant as a computation.

    Raises:
      InvalidComputationError: If the constant cannot be written as a literal, for example because it is a sequence.
    """
    if isinstance(type_spec, TensorType):
        array = array_to_proto(payload, type_spec.dtype, path="the literal", as_list=True)
        return Computation(type=type_spec.to_proto(), literal=computation_pb2.Literal(value=array))
    if isinstance(type_spec, StructType) and isinstance(payload, tuple):
        fields = fields_of(type_spec)
        members = [literal(member, t) for member, (_, t) in zip(cast("tuple[object, ...]", payload), fields)]
        return struct(members, [name for name, _ in fields])
    kind = "a sequence" if isinstance(type_spec, SequenceType) else str(type_spec)
    raise InvalidComputationError(
        f"Expected a constant that can be written as a literal, found {kind}; compute the constant in a leaf function "
        "instead"
    )
