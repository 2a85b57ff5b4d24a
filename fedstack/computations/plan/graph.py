"""Defines the graph that a computation is normalised into: nodes in the order of their making, functions over them.

A traced computation has no lambdas that are called, no blocks, no references: calling a lambda puts its body's nodes
where the call stood. What is left is a flat list of nodes per function. A function that an intrinsic takes (the body of
a map, say) is a `Function` of its own; nodes of an enclosing function that it uses are its captures.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

import attrs

from fedstack.computations.plan.made_once import Made
from fedstack.computations.types.language import FunctionType, StructType, Type, computation_pb2
from fedstack.computations.types.type_structure import fields_of, type_from_proto
from fedstack.computations.values.columns import Payload
from fedstack.errors import InvalidComputationError
from fedstack.foundations.value_text import shorten


class Scope:
    """The nodes of one function, in the order of their making, which is an order in which they can run."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.selections: dict[tuple[Node, int], Selection] = {}
        self._has_ended = False

    def add(self, node: "Node") -> None:
        """Takes in a new node."""
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
        """Forgets the nodes, and those to come, once their function is made: what needs them keeps them.

        They refer to this. In a circle they would wait for the garbage collector, and functions by value bring any
        number of bytes.
        """
        self._has_ended = True
        self.nodes = []
        self.selections = {}


@attrs.define(eq=False, repr=False)
class Node:
    """Something that yields one value, once."""

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
    """A call of an intrinsic, its functional and its other arguments apart.

    Attributes:
      uri: The intrinsic.
      functions: The functional arguments.
      arguments: The others.
      types: The types that it declares for these, of which they may have narrower ones: no elements where it takes any
        number of them. By default their own.
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
    """A struct put together out of other symbols; it is no node, since nothing has to run for it.

    Attributes:
      names: The names of its members.
      members: The members.
      size: How many symbols are in it and in the structs in it, each as often as it occurs.
    """

    names: tuple[str | None, ...]
    members: "tuple[Symbol, ...]"
    size: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.size = sum(member.size if isinstance(member, Pack) else 1 for member in self.members)


@attrs.frozen(eq=False)
class Callee:
    """A functional value that is not called yet."""

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
      InvalidComputationError: If it declares none, or one that the language refuses; the message says of what.
    """
    try:
        return type_from_proto(computation.type)
    except InvalidComputationError as error:
        kind = computation.WhichOneof("computation") or "computation of no kind"
        uri = f" {shorten(computation.intrinsic.uri)}" if kind == "intrinsic" else ""
        raise InvalidComputationError(f"{error}; as the type of the {kind}{uri}") from error.__cause__


class Function:
    """A traced function: what it needs of its own nodes, and what it takes from enclosing functions.

    Attributes:
      parameter: The node of its argument, or `None`.
      result: What it returns, in terms of its own nodes and of captures.
      nodes: The nodes of its own that the result needs, in an order in which they can run; the parameter is not
        among them.
      captures: Nodes of enclosing functions that it uses.
      made: What `made_once` keeps here.
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
    """Walks backwards from a symbol; nodes that it does not reach never run."""
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
    # Made where the source is, so that a function which needs one member captures that member only.
    return node.scope.selection(node, position)


def type_of(symbol: Symbol) -> Type:
    """Returns the type of a symbol."""
    if isinstance(symbol, Pack):
        types = [(n, type_of(m)) if n is not None else type_of(m) for n, m in zip(symbol.names, symbol.members)]
        try:
            return StructType(types)
        except ValueError as error:  # a name twice, or one that the language keeps for itself
            raise InvalidComputationError(
                f"Expected a struct with names that the language allows, found {error}"
            ) from error
    return symbol.type


def members_of(symbol: Symbol, count: int) -> Sequence[Symbol]:
    """Returns the members of a struct symbol with `count` members."""
    return [select(symbol, position) for position in range(count)]
