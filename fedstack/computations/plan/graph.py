"""Defines the graph of a traced computation: nodes in the order of their creation, and functions over them.

A traced computation has no called lambdas, blocks or references: the nodes of a lambda's body replace its call. What
remains is a flat list of nodes per function. A function that an intrinsic takes, such as the body of a map, is a
`Function` of its own; nodes of an enclosing function that it uses are its captures.
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
    """The nodes of one function, in the order of their creation, in which they can run."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.selections: dict[tuple[Node, int], Selection] = {}
        self._has_ended = False

    def add(self, node: "Node") -> None:
        """Adds a new node."""
        if not self._has_ended:
            node.index = len(self.nodes)
            self.nodes.append(node)

    def selection(self, node: "Node", position: int) -> "Selection":
        """Returns a member of a struct-valued node, always the same one."""
        found = self.selections.get((node, position))
        if found is None:
            found = Selection(fields_of(cast(StructType, node.type))[position][1], self, node, position)
            if not self._has_ended:
                self.selections[node, position] = found
        return found

    def end(self) -> None:
        """Drops the nodes, and those still to come, once their function is complete: it references what it needs.

        Nodes reference their scope. In a cycle they would stay in memory until the garbage collector runs, and
        functions by value may have any size.
        """
        self._has_ended = True
        self.nodes = []
        self.selections = {}


@attrs.define(eq=False, repr=False)
class Node:
    """A part of a computation with one value."""

    type: Type
    scope: Scope
    index: int = attrs.field(init=False, default=-1)

    def __attrs_post_init__(self) -> None:
        self.scope.add(self)

    def operands(self) -> "Iterator[Symbol]":
        """Yields the values that the node needs; captures of its functions included."""
        return iter(())

    def __repr__(self) -> str:
        return f"%{self.index}:{type(self).__name__}"


@attrs.define(eq=False, repr=False)
class Parameter(Node):
    """The argument of a function."""


@attrs.define(eq=False, repr=False)
class Constant(Node):
    """A literal."""

    payload: Payload


@attrs.define(eq=False, repr=False)
class DataNode(Node):
    """A `data` block that is no function: a data executor resolves it."""

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
    """A call of an intrinsic, with functional and other arguments separated.

    Attributes:
      uri: The intrinsic.
      functions: The functional arguments.
      arguments: The other arguments.
      types: The types that it declares for these; by default their own, which may be narrower: zero elements, where it
        accepts any number.
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
    """A struct of other symbols. It is not a node, since nothing runs for it.

    Attributes:
      names: The names of its members.
      members: The members.
      size: The number of symbols in it and in nested structs, counting repeated ones each time.
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
      InvalidComputationError: If it declares none, or one that the language refuses.
    """
    try:
        return type_from_proto(computation.type)
    except InvalidComputationError as error:
        kind = computation.WhichOneof("computation") or "computation of no kind"
        uri = f" {shorten(computation.intrinsic.uri)}" if kind == "intrinsic" else ""
        raise InvalidComputationError(f"{error}; as the type of the {kind}{uri}") from error.__cause__


class Function:
    """A traced function: the nodes of its own that it needs, and those that it captures from enclosing functions.

    Attributes:
      parameter: The node of its argument, or `None`.
      result: What it returns, in terms of its own nodes and of captures.
      nodes: The nodes of its own that the result needs, in an order in which they can run; the parameter is not
        among them.
      captures: Nodes of enclosing functions that it uses.
      made: The results of functions with `made_once`.
    """

    def __init__(self, scope: Scope, parameter: Parameter | None, result: Symbol) -> None:
        self.parameter = parameter
        self.result = result
        self.nodes, self.captures = _needed(scope, parameter, result)
        scope.end()
        self.made: Made = {}

    @property
    def type(self) -> FunctionType:
        """The function's type."""
        return FunctionType(self.parameter.type if self.parameter else None, type_of(self.result))


def _needed(scope: Scope, parameter: Parameter | None, result: Symbol) -> tuple[list[Node], list[Node]]:
    """Returns the nodes of a scope that the result needs, and those of enclosing scopes."""
    wanted = _reached(result, scope.nodes)
    own = [node for node in scope.nodes if node in wanted and node is not parameter]
    captures = sorted((node for node in wanted if node.scope is not scope), key=lambda node: node.index)
    return own, captures


def needed_for(symbol: Symbol, nodes: Sequence[Node]) -> list[Node]:
    """Returns those of a function's nodes that a symbol in terms of them needs, in their order."""
    wanted = _reached(symbol, nodes)
    return [node for node in nodes if node in wanted]


def _reached(symbol: Symbol, nodes: Sequence[Node]) -> set[Node]:
    """Returns the nodes that a symbol depends on; others never run."""
    wanted: set[Node] = set(nodes_of(symbol))
    for node in reversed(nodes):
        if node in wanted:
            for operand in node.operands():
                wanted.update(nodes_of(operand))
    return wanted


def nodes_of(symbol: Symbol) -> Iterator[Node]:
    """Yields the nodes that a symbol refers to directly."""
    if isinstance(symbol, Node):
        yield symbol
    elif isinstance(symbol, Pack):
        for member in symbol.members:
            yield from nodes_of(member)


def select(source: Symbol, position: int) -> Symbol:
    """Returns a member of a struct symbol. The caller has checked that there is one."""
    if isinstance(source, Pack):
        return source.members[position]
    node = source
    if not isinstance(node, Node) or not isinstance(node.type, StructType):
        raise TypeError(f"Expected a struct, found {node}")
    # Created in the scope of the source, so that a function that needs one member captures only that.
    return node.scope.selection(node, position)


def type_of(symbol: Symbol) -> Type:
    """Returns the type of a symbol."""
    if isinstance(symbol, Pack):
        fields = list(zip(symbol.names, map(type_of, symbol.members)))
        try:
            return struct_of(fields)
        except ValueError as error:  # a repeated or reserved name
            raise InvalidComputationError(
                f"Expected a struct with names that the language allows, found {error}"
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
    """Returns whether a node runs at each client."""
    return isinstance(node, IntrinsicCall) and node.uri in _CLIENT_WORK


def is_aggregation(node: Node) -> bool:
    """Returns whether a node aggregates values of clients."""
    return isinstance(node, IntrinsicCall) and node.uri in INTRINSICS and INTRINSICS[node.uri].aggregates


def is_select(node: Node) -> TypeGuard[IntrinsicCall]:
    """Returns whether a node gives clients slices of what the server has."""
    return isinstance(node, IntrinsicCall) and node.uri in _SELECTS


def is_barrier(node: Node) -> bool:
    """Returns whether users of the node are in a later phase."""
    return is_aggregation(node) or is_select(node)


def is_zip_or_broadcast(node: Node) -> TypeGuard[IntrinsicCall]:
    """Returns whether a node calls an intrinsic that only places a value, or joins it with others."""
    return isinstance(node, IntrinsicCall) and node.uri in _TRANSPARENT


def is_transparent(node: Node) -> bool:
    """Returns whether a node runs nothing, so that its value is where its operands are."""
    return isinstance(node, Selection) or is_zip_or_broadcast(node)


def made_anew(function: Function) -> frozenset[Node]:
    """Returns the nodes at clients that each phase computes for itself, rather than one phase for all.

    The elements of a mapped sequence are made in each pass over it, in the order of the pass. A phase could pass on to
    another only its elements, whose order in another pass is unknown. So these nodes are maps that only map sequences,
    and zips with such, as far as only clients read them.
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
    """Returns whether a node does nothing but map sequences, or select members of values that such nodes make."""
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
