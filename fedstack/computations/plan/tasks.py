"""Defines the tasks of a schedule: server work, client phases with aggregations, and selections.

`schedule.py` creates tasks from a traced computation, and executors run them.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import attrs

from fedstack.computations.plan.program import Expression, Join, Program, Slot
from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Payload
from fedstack.foundations.caches import Made


@attrs.frozen(eq=False)
class ServerTask:
    """A task that runs a program once, on unplaced values and on values on the server."""

    program: Program
    inputs: tuple[Expression, ...]
    target: int
    reads: frozenset[int]


@attrs.frozen
class ProgramTypes:
    """The types of a program's inputs and of its single result."""

    inputs: tuple[Type, ...]
    result: Type


@attrs.frozen(eq=False)
class Fold:
    """An aggregation of results of a phase's program.

    Attributes:
      uri: The name of the aggregating intrinsic.
      results: The positions of the aggregated values in the program's results. For a weighted mean, the position of the
        weights follows.
      member: The type of the values.
      weight: The type of the weights, if any.
      server_inputs: The other arguments, in order: the zero of an aggregation, or the bound of a secure sum.
      server_types: The types that the intrinsic declares for `server_inputs`.
      functions: The programs of the functional arguments. The inputs of each program are the parameter, then the
        captures.
      signatures: For each function, the types of its program.
      captures: For each function, its captures.
      type: The member type of the result.
      reads_alone: Whether the program produces the values that the fold reads, and the fold is their only reader.
    """

    uri: str
    results: tuple[int, ...]
    member: Type
    weight: Type | None
    server_inputs: tuple[Expression, ...]
    server_types: tuple[Type, ...]
    functions: tuple[Program, ...]
    signatures: tuple[ProgramTypes, ...]
    captures: tuple[tuple[Expression, ...], ...]
    type: Type
    reads_alone: bool = False


@attrs.frozen(eq=False)
class Phase:
    """The work of clients between two aggregations: a program that runs for each client, and folds over its results.

    Attributes:
      program: The program. Its inputs are columns, or payloads that are equal for all clients.
      input_types: The types of the inputs for one client.
      folds: The aggregations of results.
      held: The positions of the results that are stored as columns, with their member types.
      following: The next phase, if a whole schedule is run.
      made: The cached results of functions decorated with `made_once`.
    """

    program: Program
    input_types: tuple[Type, ...]
    folds: tuple[Fold, ...]
    held: tuple[tuple[int, Type], ...]
    following: "Phase | None" = attrs.field(default=None, repr=False)
    made: Made = attrs.field(factory=cast("Callable[[], Made]", dict), init=False, repr=False)

    @property
    def result_types(self) -> tuple[Type, ...]:
        """The types of the program's results for one client."""
        types: dict[int, Type] = dict(self.held)
        for fold in self.folds:
            types[fold.results[0]] = fold.member
            if fold.weight is not None:
                types[fold.results[1]] = fold.weight
        return tuple(types[position] for position in range(len(self.program.results)))


@attrs.frozen(eq=False)
class PhaseTask:
    """A task that runs a phase. The target slots receive the results of the folds, then the held columns."""

    phase: Phase
    inputs: tuple[Expression, ...]
    targets: tuple[int, ...]
    reads: frozenset[int]


@attrs.frozen(eq=False)
class SelectTask:
    """A task that sends each client the slices of a server value that the client's keys select."""

    uri: str
    keys: Expression
    max_key: Expression
    value: Expression
    function: Program
    captures: tuple[Expression, ...]
    type: Type
    target: int
    reads: frozenset[int]


Task: TypeAlias = ServerTask | PhaseTask | SelectTask


@attrs.frozen(eq=False)
class Schedule:
    """The tasks of a computation, in an order in which they can run. Slot 0 contains the argument.

    Attributes:
      tasks: The tasks.
      constants: The slots of literals, with the payloads of the literals.
      result: The expression for the result.
      slots: The total number of slots.
      shared: The expressions that are inputs of more than one phase.
    """

    tasks: tuple[Task, ...]
    constants: tuple[tuple[int, Payload], ...]
    result: Expression
    slots: int
    shared: frozenset[Expression]

    def counts_as_phase(self, task: Task) -> bool:
        """Returns whether a task counts as a phase of a call: a phase, or a selection that no other task reads."""
        is_selection = isinstance(task, SelectTask)
        return isinstance(task, PhaseTask) or (
            is_selection and not any(task.target in other.reads for other in self.tasks)
        )


def slots_read(expressions: Sequence[Expression]) -> frozenset[int]:
    """Returns the slots that expressions read."""
    found: set[int] = set()

    def visit(expression: Expression) -> None:
        if isinstance(expression, Slot):
            found.add(expression.index)
        elif isinstance(expression, Join):
            for part in expression.parts:
                visit(part)
        else:
            visit(expression.source)

    for expression in expressions:
        visit(expression)
    return frozenset(found)
