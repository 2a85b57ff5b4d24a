"""Defines the graph of a traced computation: nodes in the order of their creation, and functions over nodes.

A traced computation contains no blocks, no references and no calls of lambdas: the nodes of a lambda's body replace
each call. Each function is a flat list of nodes. A functional argument of an intrinsic, such as the body of a
map, is a separate `Function`. The nodes that it uses from enclosing functions are its captures.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeGuard, cast

import attrs

from fedstack.computations.plan.intrinsics import INTRINSICS
from fedstack.computations.types.language import FunctionType, StructType, Type, computation_pb2
from fedstack.computations.types.type_structure import fields_of, is_placed_at_clients, struct_of, type_from_proto
from fedstack.computations.values.columns import Payload
from fedstack.errors import InvalidComputationError
from fedstack.foundations.caches import Made
from fedstack.foundations.value_text import shorten


class Scope:
    """The nodes of one function, in the order of their creation. They can run in this order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.selections: dict[tuple[Node, int], Selection] = {}
        self._has_ended = False

    def add(self, node: "Node") -> None:
        """Adds a new node to the scope."""
        if not self._has_ended:
            node.index = len(self.nodes)
            self.nodes.append(node)

    def selection(self, node: "Node", position: int) -> "Selection":
        """Returns the selection of a member of a struct-valued node. Repeated calls return the same node."""
        found = self.selections.get((node, position))
        if found is None:
            found = Selection(fields_of(cast(StructType, node.type))[position][1], self, node, position)
            if not self._has_ended:
                self.selections[node, position] = found
        return found

    def end(self) -> None:
        """Drops the nodes of the scope, and ignores new nodes from now on.

        The completed function references the nodes that it needs. Because nodes reference their scope, keeping nodes in
        the scope would create reference cycles. Nodes, which may contain large functions by value, would then stay in
        memory until the garbage collector runs.
        """
        self._has_ended = True
        self.nodes = []
        self.selections = {}


@attrs.define(eq=False, repr=False)
class Node:
    """A part of a computation that yields one value."""

    type: Type
    scope: Scope
    index: int = attrs.field(init=False, default=-1)

    def __attrs_post_init__(self) -> None:
        self.scope.add(self)

    def operands(self) -> "Iterator[Symbol]":
        """Yields the values that the node needs, including the captures of its functions."""
        return iter(())

    def __repr__(self) -> str:
        return f"%{self.index}:{type(self).__name__}"


@attrs.define(eq=False, repr=False)
class Parameter(Node):
    """The argument of a function."""


@attrs.define(eq=False, repr=False)
class Constant(Node):
    """The value of a literal."""

    payload: Payload


@attrs.define(eq=False, repr=False)
class DataNode(Node):
    """A `data` block that is not a function. A data executor resolves it."""

    computation: computation_pb2.Computation


@attrs.define(eq=False, repr=False)
class Selection(Node):
    """A member of a struct-valued node."""

    source: Node
    position: int

    def operands(self) -> "Iterator[Symbol]":
        yield self.source


@attrs.define(eq=False, repr=False)
class LeafCall(Node):
    """A call of a leaf computation."""

    computation: computation_pb2.Computation
    argument: "Symbol | None"

    def operands(self) -> "Iterator[Symbol]":
        if self.argument is not None:
            yield self.argument


@attrs.define(eq=False, repr=False)
class IntrinsicCall(Node):
    """A call of an intrinsic, with functional arguments separated from other arguments.

    Attributes:
      uri: The name of the intrinsic.
      functions: The functional arguments.
      arguments: The other arguments.
      types: The types that the intrinsic declares for `arguments`. They default to the arguments' own types, which may
        be narrower: for example, an array of zero elements where the declared type accepts any number of elements.
    """

    uri: str
    functions: "tuple[Function, ...]"
    arguments: "tuple[Symbol, ...]"
    types: tuple[Type, ...] = attrs.Factory(lambda self: tuple(map(type_of, self.arguments)), takes_self=True)

    def operands(self) -> "Iterator[Symbol]":
        yield from self.arguments
        for function in self.functions:
            yield from function.captures


@attrs.define(eq=False, repr=False)
class Pack:
    """A struct of symbols. It is not a node, because it requires no work.

    Attributes:
      names: The names of the members.
      members: The members.
      size: The number of symbols in the struct and in nested structs. Repeated symbols are counted each time.
    """

    names: tuple[str | None, ...]
    members: "tuple[Symbol, ...]"
    size: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.size = sum(member.size if isinstance(member, Pack) else 1 for member in self.members)


@attrs.frozen(eq=False)
class Callee:
    """A functional value that has not been called yet."""

    computation: computation_pb2.Computation
    environment: object = None

    @property
    def type(self) -> Type:
        """The function type that the computation declares."""
        return declared_type(self.computation)


Symbol: TypeAlias = Node | Pack | Callee


def declared_type(computation: computation_pb2.Computation) -> Type:
    """Returns the type that a computation declares.

    Raises:
      InvalidComputationError: If the computation declares no type, or a type that is invalid in the language.
    """
    try:
        return type_from_proto(computation.type)
    except InvalidComputationError as error:
        kind = computation.WhichOneof("computation") or "computation of unknown kind"
        uri = f" {shorten(computation.intrinsic.uri)}" if kind == "intrinsic" else ""
        raise InvalidComputationError(f"The type of the {kind}{uri} is invalid: {error}") from error.__cause__


class Function:
    """A traced function, which consists of its own nodes and the nodes captured from enclosing functions.

    Attributes:
      parameter: The node of the function's argument, or `None`.
      result: The result, in terms of the function's own nodes and captures.
      nodes: The function's own nodes that the result needs, except the parameter, in an order in which they can run.
      captures: The nodes of enclosing functions that the function uses.
      made: The cached results of functions decorated with `made_once`.
    """

    def __init__(self, scope: Scope, parameter: Parameter | None, result: Symbol) -> None:
        self.parameter = parameter
        self.result = result
        self.nodes, self.captures = _needed(scope, parameter, result)
        scope.end()
        self.made: Made = {}

    @property
    def type(self) -> FunctionType:
        """The type of the function."""
        return FunctionType(self.parameter.type if self.parameter else None, type_of(self.result))


def _needed(scope: Scope, parameter: Parameter | None, result: Symbol) -> tuple[list[Node], list[Node]]:
    """Returns the scope's own nodes that `result` needs, and the nodes that it captures from enclosing scopes."""
    wanted = _reached(result, scope.nodes)
    own = [node for node in scope.nodes if node in wanted and node is not parameter]
    captures = sorted((node for node in wanted if node.scope is not scope), key=lambda node: node.index)
    return own, captures


def needed_for(symbol: Symbol, nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes in `nodes` that `symbol` needs, in their original order."""
    wanted = _reached(symbol, nodes)
    return [node for node in nodes if node in wanted]


def _reached(symbol: Symbol, nodes: Sequence[Node]) -> set[Node]:
    """Returns the nodes on which a symbol depends. Other nodes never run."""
    wanted: set[Node] = set(nodes_of(symbol))
    for node in reversed(nodes):
        if node in wanted:
            for operand in node.operands():
                wanted.update(nodes_of(operand))
    return wanted


def nodes_of(symbol: Symbol) -> Iterator[Node]:
    """Yields the nodes to which a symbol directly refers."""
    if isinstance(symbol, Node):
        yield symbol
    elif isinstance(symbol, Pack):
        for member in symbol.members:
            yield from nodes_of(member)


def select(source: Symbol, position: int) -> Symbol:
    """Returns a member of a struct symbol. The caller has checked that the member exists."""
    if isinstance(source, Pack):
        return source.members[position]
    node = source
    if not isinstance(node, Node) or not isinstance(node.type, StructType):
        raise TypeError(f"Expected a struct, found {node}")
    # The selection is created in the scope of its source, so that a function that needs one member captures only it.
    return node.scope.selection(node, position)


def type_of(symbol: Symbol) -> Type:
    """Returns the type of a symbol."""
    if isinstance(symbol, Pack):
        fields = list(zip(symbol.names, map(type_of, symbol.members)))
        try:
            return struct_of(fields)
        except ValueError as error:  # a repeated or reserved name
            raise InvalidComputationError(
                f"Expected a struct with distinct names that the language allows, found invalid names: {error}; rename "
                "the members"
            ) from error
    return symbol.type


def members_of(symbol: Symbol, count: int) -> Sequence[Symbol]:
    """Returns the members of a struct symbol with `count` members."""
    return [select(symbol, position) for position in range(count)]


_TRANSPARENT = {
    "federated_broadcast",
    "federated_value_at_clients",
    "federated_value_at_server",
    "federated_zip_at_clients",
    "federated_zip_at_server",
}
_CLIENT_WORK = {"federated_map", "federated_eval_at_clients"}
_SELECTS = {"federated_select", "federated_secure_select"}


def is_client_work(node: Node) -> bool:
    """Returns whether a node runs on each client."""
    return isinstance(node, IntrinsicCall) and node.uri in _CLIENT_WORK


def is_aggregation(node: Node) -> bool:
    """Returns whether a node aggregates clients' values."""
    return isinstance(node, IntrinsicCall) and node.uri in INTRINSICS and INTRINSICS[node.uri].aggregates


def is_select(node: Node) -> TypeGuard[IntrinsicCall]:
    """Returns whether a node sends clients slices of a value on the server."""
    return isinstance(node, IntrinsicCall) and node.uri in _SELECTS


def is_barrier(node: Node) -> bool:
    """Returns whether nodes that use the node's value belong to a later phase."""
    return is_aggregation(node) or is_select(node)


def is_zip_or_broadcast(node: Node) -> TypeGuard[IntrinsicCall]:
    """Returns whether a node calls an intrinsic that only places a value, or joins it with other values."""
    return isinstance(node, IntrinsicCall) and node.uri in _TRANSPARENT


def is_transparent(node: Node) -> bool:
    """Returns whether a node requires no work, so that its value is available wherever its operands are."""
    return isinstance(node, Selection) or is_zip_or_broadcast(node)


def made_anew(function: Function) -> frozenset[Node]:
    """Returns the client nodes that each phase recomputes instead of reading the value from an earlier phase.

    These nodes are maps that only map sequences, and zips with such maps, if only clients read them. The elements of a
    mapped sequence are computed in each pass over it, in the order of the pass. A phase could pass elements to
    another phase, but not the order that these have in a later pass.
    """
    read_elsewhere = set(_deep(function.result))
    for node in function.nodes:
        if not is_transparent(node) and not is_client_work(node) and not is_aggregation(node):
            for operand in node.operands():
                read_elsewhere.update(_deep(operand))
    anew: set[Node] = set()
    for node in function.nodes:
        if isinstance(node, IntrinsicCall) and node not in read_elsewhere and is_placed_at_clients(node.type):
            reads_anew = any(operand in anew for symbol in node.operands() for operand in nodes_of(symbol))
            if (is_zip_or_broadcast(node) and reads_anew) or _only_maps_sequences(node, reads_anew):
                anew.add(node)
    return frozenset(anew)


def _only_maps_sequences(node: IntrinsicCall, reads_anew: bool) -> bool:
    """Returns whether a node only maps sequences, or selects members of values from nodes that only map sequences."""
    if node.uri != "federated_map":
        return False
    maps = [inner for inner in node.functions[0].nodes if not isinstance(inner, Selection)]
    return (bool(maps) or reads_anew) and all(
        isinstance(inner, IntrinsicCall) and inner.uri == "sequence_map" for inner in maps
    )


def _deep(symbol: Symbol) -> Iterator[Node]:
    for node in nodes_of(symbol):
        yield node
        if is_transparent(node):
            for operand in node.operands():
                yield from _deep(operand)
