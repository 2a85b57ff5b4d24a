"""Defines straight-line programs, which express a function's work in one location as steps over numbered slots.

Executors in one process pass programs to each other. A program runs either once (for server work, or for an element of
a sequence), or once per client, step by step over whole columns. Each step names a *source* (a leaf computation, an
intrinsic or a data block), which executors replace with a callable operation (`BoundOperation`).

A fold may write into an array that a leaf function returned, if nothing else reads the array afterwards. Within the
program, a step must have produced the array, and no other result may read it (`read_by_one`). Within the process,
nothing else may reference the array (`take_buffer` in `values/ownership.py`).
"""

import abc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_structure import contains_federated
from fedstack.computations.values.columns import Payload
from fedstack.errors import InvalidComputationError
from fedstack.foundations.caches import Made, made_once


@attrs.frozen
class Slot:
    """A reference to the value of an input, a constant or an earlier step."""

    index: int


@attrs.frozen
class Join:
    """An expression for a struct of other expressions."""

    parts: "tuple[Expression, ...]"


@attrs.frozen
class Pick:
    """An expression for a member of a struct."""

    source: "Expression"
    position: int


Expression: TypeAlias = Slot | Join | Pick


def pick(source: Expression, position: int) -> Expression:
    """Returns the expression for a member of a struct. For a `Join`, it is the part itself."""
    return source.parts[position] if isinstance(source, Join) else Pick(source, position)


def replaced(expression: Expression, by: Callable[[int], Expression | None]) -> Expression:
    """Returns an expression with other expressions in place of slots.

    Args:
      expression: The expression.
      by: Returns what replaces a slot; `None` for a slot that stays.
    """
    if isinstance(expression, Slot):
        return by(expression.index) or expression
    if isinstance(expression, Join):
        return Join(tuple([replaced(part, by) for part in expression.parts]))
    return pick(replaced(expression.source, by), expression.position)


@attrs.frozen(eq=False)
class LeafSource:
    """A leaf computation that a runtime has not loaded yet."""

    computation: computation_pb2.Computation

    @property
    def name(self) -> str:
        """The name of the leaf computation; empty if its carrier has no name."""
        return leaf_name(self.computation)


@attrs.frozen(eq=False)
class DataSource:
    """A `data` block that a data executor has not resolved yet."""

    computation: computation_pb2.Computation
    type: Type
    name: str = attrs.field(default="data", init=False)


@attrs.frozen(eq=False)
class IntrinsicSource:
    """An intrinsic that an executor has not replaced with an operation yet.

    The argument of the operation is a struct of the intrinsic's value arguments, followed by the captures of each of
    its functions.

    Attributes:
      uri: The name of the intrinsic.
      functions: The programs of the functional arguments. The inputs of each program are the parameter, then the
        captures.
      parameters: The parameter type of each function that has a parameter.
      captures: The number of captures of each function.
      type: The result type.
      arguments: The types that the intrinsic declares for its value arguments.
    """

    uri: str
    functions: "tuple[Program, ...]"
    parameters: tuple[Type, ...]
    captures: tuple[int, ...]
    type: Type
    arguments: tuple[Type, ...]

    @property
    def name(self) -> str:
        """The name of the intrinsic."""
        return self.uri


Operation: TypeAlias = LeafSource | DataSource | IntrinsicSource | BoundOperation


class CompositeOperation(BoundOperation):
    """An operation that runs programs."""

    @abc.abstractmethod
    def linked(self, link: "Callable[[Program], Program]") -> BoundOperation:
        """Returns the operation with `link` applied to each of its programs."""


@attrs.frozen(eq=False)
class ProgramStep:
    """A step that runs an operation on an argument and stores the result in a slot."""

    operation: Operation
    argument: Expression | None
    target: int


@attrs.frozen(eq=False)
class Program:
    """A straight-line program of steps over numbered slots.

    Attributes:
      inputs: The slots of the inputs.
      constants: The slots of literals, with the payloads of the literals.
      steps: The steps, in order.
      results: The expressions for the results.
      slots: The total number of slots.
      made: The cached results of functions decorated with `made_once`.
    """

    inputs: tuple[int, ...]
    constants: tuple[tuple[int, Payload], ...]
    steps: tuple[ProgramStep, ...]
    results: tuple[Expression, ...]
    slots: int
    made: Made = attrs.field(factory=cast("Callable[[], Made]", dict), init=False, repr=False)

    def with_operations(self, linking: "Linking", replace: Callable[[Operation], Operation]) -> "Program":
        """Returns the program with `replace` applied to each operation. The result is cached for each linking."""
        made = _linked(self)
        found = made.get(linking)
        if found is None:
            steps = tuple(attrs.evolve(step, operation=replace(step.operation)) for step in self.steps)
            found = made[linking] = Program(self.inputs, self.constants, steps, self.results, self.slots)
        return found


@attrs.frozen(eq=False)
class Linking:
    """Identifies a way to replace the sources of programs with operations.

    Executors that replace sources in the same way share a `Linking`.

    Attributes:
      name: A name for debugging.
    """

    name: str


@made_once
def _linked(program: Program) -> "WeakKeyDictionary[Linking, Program]":
    """Returns the cache of linked versions of a program."""
    return WeakKeyDictionary()


class ProgramBuilder:
    """Builds a program step by step."""

    def __init__(self) -> None:
        self._slots = 0
        self._inputs: list[int] = []
        self._constants: list[tuple[int, object]] = []
        self._steps: list[ProgramStep] = []
        self.bound: dict[Node, Expression] = {}

    def _new_slot(self) -> Slot:
        self._slots += 1
        return Slot(self._slots - 1)

    def input(self) -> Slot:
        """Adds an input and returns its slot."""
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
        """Binds a selection that was created in an enclosing function after this function was traced."""
        if isinstance(node, Selection):
            return self.bind(node, pick(self.read(node.source), node.position))
        raise InvalidComputationError(f"Expected a value from an earlier step, found {node!r}")

    def bind(self, node: Node, expression: Expression) -> Expression:
        """Records and returns the expression for the value of a node."""
        self.bound[node] = expression
        return expression

    def inline(self, function: Function, argument: Expression | None) -> Expression:
        """Appends the steps of a function whose captures are bound, and returns the expression for its result."""
        if function.parameter is not None and argument is not None:
            self.bind(function.parameter, argument)
        for node in function.nodes:
            self.add(node)
        return self.read(function.result)

    def add(self, node: Node) -> Expression:
        """Appends the step that computes a node without a placement, and returns the expression for its value."""
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
            "Expected only local work in a mapped function, found "
            f"{node.uri if isinstance(node, IntrinsicCall) else repr(node)}; call federated operators directly in the "
            "federated_computation, outside of mapped functions"
        )

    def _step(self, operation: Operation, argument: Expression | None) -> Slot:
        target = self._new_slot()
        self._steps.append(ProgramStep(operation, argument, target.index))
        return target

    def _intrinsic(self, node: IntrinsicCall) -> Expression:
        programs = tuple(closed_program(function) for function in node.functions)
        captures = [self.read(capture) for function in node.functions for capture in function.captures]
        arguments = Join((*(self.read(argument) for argument in node.arguments), *captures))
        counts = tuple(len(function.captures) for function in node.functions)
        parameters = tuple(function.parameter.type for function in node.functions if function.parameter is not None)
        return self._step(IntrinsicSource(node.uri, programs, parameters, counts, node.type, node.types), arguments)

    def finish(self, results: Sequence[Expression]) -> Program:
        """Returns the completed program with the given results."""
        return Program(tuple(self._inputs), tuple(self._constants), tuple(self._steps), tuple(results), self._slots)


@made_once
def closed_program(function: Function) -> Program:
    """Returns the program of a function without placements. Its inputs are the parameter, if any, then the captures."""
    builder = ProgramBuilder()
    argument = builder.input() if function.parameter is not None else None
    for capture in function.captures:
        builder.bind(capture, builder.input())
    return builder.finish([builder.inline(function, argument)])


Path = tuple[int, ...]


def read_by_one(program: Program, readers: Sequence[Sequence[int]]) -> list[bool]:
    """Returns, for each reader, whether steps of the program produce all its values and no other reader reads them.

    Args:
      program: The program.
      readers: For each reader, the positions of the results that it reads.
    """
    made = {step.target for step in program.steps}
    paths = [[path for i in positions for path in _paths(program.results[i])] for positions in readers]
    reads = Counter(path for reader in paths for path in reader)
    # Reading a struct also reads its members, so a reader of a path also reads all longer paths that begin with it.
    beneath = {path[:length] for path in reads for length in range(1, len(path))}

    def alone(path: Path) -> bool:
        shorter = (path[:length] for length in range(1, len(path)))
        return path[0] in made and reads[path] == 1 and path not in beneath and not any(p in reads for p in shorter)

    return [all(map(alone, reader)) for reader in paths]


def _paths(expression: Expression) -> Iterator[Path]:
    """Yields the paths that an expression reads: a slot, followed by the positions of the picked members."""
    picks: list[int] = []
    while not isinstance(expression, Join) or picks:
        if isinstance(expression, Slot):
            yield (expression.index, *reversed(picks))
            return
        if isinstance(expression, Pick):
            picks.append(expression.position)
            expression = expression.source
        else:
            expression = expression.parts[picks.pop()]
    for part in expression.parts:
        yield from _paths(part)
