"""Defines straight-line programs: what a function does in one place, as a list of steps over numbered slots.

A program is what travels between executors inside one process. The same program runs once (server work, an element of
a sequence) or once per client, step by step over whole columns. Its steps name what they run as a *source* (a leaf
computation, an intrinsic, a data block); executors replace sources by operations that can be called (`BoundOperation`).
"""

import abc
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast
from weakref import WeakKeyDictionary

import attrs

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.leaf_runtimes import leaf_name
from fedstack.computations.plan.graph import (
    Callee,
    Constant,
    DataNode,
    Function,
    IntrinsicCall,
    LeafCall,
    Node,
    Pack,
    Parameter,
    Selection,
    Symbol,
)
from fedstack.computations.plan.made_once import Made, made_once
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_structure import contains_federated
from fedstack.computations.values.columns import Payload
from fedstack.errors import InvalidComputationError


@attrs.frozen
class Slot:
    """A value that an input or an earlier step has put there."""

    index: int


@attrs.frozen
class Join:
    """A struct of other expressions."""

    parts: "tuple[Expression, ...]"


@attrs.frozen
class Pick:
    """A member of a struct."""

    source: "Expression"
    position: int


Expression: TypeAlias = Slot | Join | Pick


def pick(source: Expression, position: int) -> Expression:
    """Returns the expression for a member: the part itself where the struct is only put together to be taken apart."""
    return source.parts[position] if isinstance(source, Join) else Pick(source, position)


@attrs.frozen(eq=False)
class LeafSource:
    """A leaf computation that a runtime is still to load."""

    computation: computation_pb2.Computation

    @property
    def name(self) -> str:
        """What it is called, as far as its carrier says."""
        return leaf_name(self.computation)


@attrs.frozen(eq=False)
class DataSource:
    """A `data` block that a data executor is still to resolve."""

    computation: computation_pb2.Computation
    type: Type

    @property
    def name(self) -> str:
        """What it is called."""
        return "data"


@attrs.frozen(eq=False)
class IntrinsicSource:
    """An intrinsic that an executor is still to give a meaning.

    Its argument is a struct: first the arguments that are values, then the captures of each of its functions.

    Attributes:
      uri: The intrinsic.
      functions: The programs of its functional arguments; their inputs are the parameter, then the captures.
      parameters: The types of their parameters.
      captures: How many captures each of them has.
      type: The result type.
      arguments: The types that it declares for the arguments that are values.
    """

    uri: str
    functions: "tuple[Program, ...]"
    parameters: tuple[Type, ...]
    captures: tuple[int, ...]
    type: Type
    arguments: tuple[Type, ...]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.uri


Operation: TypeAlias = LeafSource | DataSource | IntrinsicSource | BoundOperation


class CompositeOperation(BoundOperation):
    """An operation that runs programs of its own."""

    @abc.abstractmethod
    def linked(self, link: "Callable[[Program], Program]") -> BoundOperation:
        """Returns the operation with its programs linked."""


@attrs.frozen(eq=False)
class Step:
    """Runs an operation on an argument and puts what it returns into a slot."""

    operation: Operation
    argument: Expression | None
    target: int


@attrs.frozen(eq=False)
class Program:
    """Steps over slots.

    Attributes:
      inputs: The slots of the inputs.
      constants: Slots that hold a literal.
      steps: What runs, in order.
      results: What comes out.
      slots: The number of slots.
      made: What `made_once` keeps here.
    """

    inputs: tuple[int, ...]
    constants: tuple[tuple[int, Payload], ...]
    steps: tuple[Step, ...]
    results: tuple[Expression, ...]
    slots: int
    made: Made = attrs.field(factory=cast("Callable[[], Made]", dict), init=False, repr=False)

    def with_operations(self, linking: "Linking", replace: Callable[[Operation], Operation]) -> "Program":
        """Returns the program with each operation replaced, made once per linking and kept."""
        made = _linked(self)
        found = made.get(linking)
        if found is None:
            steps = tuple(attrs.evolve(step, operation=replace(step.operation)) for step in self.steps)
            found = made[linking] = Program(self.inputs, self.constants, steps, self.results, self.slots)
        return found


@attrs.frozen(eq=False)
class Linking:
    """A way to replace the operations of programs by what runs them; executors for which it is the same share one.

    Attributes:
      name: Says which, for people.
    """

    name: str


@made_once
def _linked(program: Program) -> "WeakKeyDictionary[Linking, Program]":
    """Returns what a program has become in each linking."""
    return WeakKeyDictionary()


class ProgramBuilder:
    """Writes a program, step by step."""

    def __init__(self) -> None:
        self._slots = 0
        self._inputs: list[int] = []
        self._constants: list[tuple[int, object]] = []
        self._steps: list[Step] = []
        self.bound: dict[Node, Expression] = {}

    def _new_slot(self) -> Slot:
        self._slots += 1
        return Slot(self._slots - 1)

    def input(self) -> Slot:
        """Adds an input."""
        slot = self._new_slot()
        self._inputs.append(slot.index)
        return slot

    def read(self, symbol: Symbol) -> Expression:
        """Returns the expression for a symbol whose nodes are bound."""
        if isinstance(symbol, Pack):
            return Join(tuple(self.read(member) for member in symbol.members))
        if isinstance(symbol, Callee):
            raise InvalidComputationError(f"Expected a value, found a function of type {symbol.type}; call it first")
        found = self.bound.get(symbol)
        return self._late(symbol) if found is None else found

    def _late(self, node: Node) -> Expression:
        """Binds a selection that was made in an enclosing function after this one was traced."""
        if isinstance(node, Selection):
            return self.bind(node, pick(self.read(node.source), node.position))
        raise InvalidComputationError(f"Expected a value made before, found {node!r}")

    def bind(self, node: Node, expression: Expression) -> Expression:
        """Says where the value of a node is."""
        self.bound[node] = expression
        return expression

    def inline(self, function: Function, argument: Expression | None) -> Expression:
        """Appends the steps of a function whose captures are bound, and returns its result."""
        if function.parameter is not None and argument is not None:
            self.bind(function.parameter, argument)
        for node in function.nodes:
            self.add(node)
        return self.read(function.result)

    def add(self, node: Node) -> Expression:
        """Appends what computes an unplaced node."""
        if isinstance(node, Parameter):
            return self.read(node)
        if isinstance(node, Selection):
            return self.bind(node, pick(self.read(node.source), node.position))
        if isinstance(node, Constant):
            slot = self._new_slot()
            self._constants.append((slot.index, node.payload))
            return self.bind(node, slot)
        if isinstance(node, LeafCall):
            argument = None if node.argument is None else self.read(node.argument)
            return self.bind(node, self._step(LeafSource(node.computation), argument))
        if isinstance(node, DataNode):
            return self.bind(node, self._step(DataSource(node.computation, node.type), None))
        if isinstance(node, IntrinsicCall) and not contains_federated(node.type):
            return self.bind(node, self._intrinsic(node))
        raise InvalidComputationError(
            f"Expected only local work in a function that runs at one place, found {_shown(node)}; call federated "
            "operators in the federated_computation itself, outside of mapped functions"
        )

    def _step(self, operation: Operation, argument: Expression | None) -> Slot:
        target = self._new_slot()
        self._steps.append(Step(operation, argument, target.index))
        return target

    def _intrinsic(self, node: IntrinsicCall) -> Expression:
        programs = tuple(closed_program(function) for function in node.functions)
        captures = [self.read(capture) for function in node.functions for capture in function.captures]
        arguments = Join((*(self.read(argument) for argument in node.arguments), *captures))
        counts = tuple(len(function.captures) for function in node.functions)
        parameters = tuple(function.parameter.type for function in node.functions if function.parameter is not None)
        return self._step(IntrinsicSource(node.uri, programs, parameters, counts, node.type, node.types), arguments)

    def finish(self, results: Sequence[Expression]) -> Program:
        """Returns the program."""
        return Program(tuple(self._inputs), tuple(self._constants), tuple(self._steps), tuple(results), self._slots)


def _shown(node: Node) -> str:
    return node.uri if isinstance(node, IntrinsicCall) else repr(node)


@made_once
def closed_program(function: Function) -> Program:
    """Returns the program of an unplaced function: its inputs are the parameter, if any, then the captures."""
    builder = ProgramBuilder()
    argument = builder.input() if function.parameter is not None else None
    for capture in function.captures:
        builder.bind(capture, builder.input())
    return builder.finish([builder.inline(function, argument)])
