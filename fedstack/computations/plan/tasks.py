"""Defines the tasks of a schedule: server work, client phases with their aggregations, selections.

`schedule.py` makes them from a traced computation; executors run them.
"""

from collections.abc import Callable
from typing import TypeAlias, cast

import attrs

from fedstack.computations.plan.program import Expression, Program
from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Payload
from fedstack.foundations.caches import Made


@attrs.frozen(eq=False)
class ServerTask:
    """Runs a program once, on unplaced values and values at the server."""

    program: Program
    inputs: tuple[Expression, ...]
    target: int
    reads: frozenset[int]


@attrs.frozen
class ProgramTypes:
    """The types of a program's inputs, and of its only result."""

    inputs: tuple[Type, ...]
    result: Type


@attrs.frozen(eq=False)
class Fold:
    """An aggregation of results of a phase's program.

    Attributes:
      uri: The aggregating intrinsic.
      results: Positions in the program's results: the values, and for a weighted mean the weights.
      member: The type of the values.
      weight: The type of the weights, if any.
      server_inputs: The other arguments, in their order: zero, or the bound of a secure sum.
      functions: Programs of its functional arguments; their inputs are the parameter, then the captures.
      signatures: For each function, the types of its program.
      captures: For each function, its captures.
      type: The result's member type.
      reads_alone: Whether the program makes the values that the fold reads, and nothing else reads them.
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
    """The work of clients between two aggregations: one program per client, and the folds over its results.

    Attributes:
      program: The program. Its inputs are columns, or payloads that are the same for all clients.
      input_types: The types of the inputs, as one client sees them.
      folds: The aggregations.
      held: Positions of the results that are stored as columns, with their member types.
      following: The next phase, if all of a schedule is run.
      made: The results of functions with `made_once`.
    """

    program: Program
    input_types: tuple[Type, ...]
    folds: tuple[Fold, ...]
    held: tuple[tuple[int, Type], ...]
    following: "Phase | None" = attrs.field(default=None, repr=False)
    made: Made = attrs.field(factory=cast("Callable[[], Made]", dict), init=False, repr=False)

    @property
    def result_types(self) -> tuple[Type, ...]:
        """The types of the program's results, as one client yields them."""
        types: dict[int, Type] = dict(self.held)
        for fold in self.folds:
            types[fold.results[0]] = fold.member
            if fold.weight is not None:
                types[fold.results[1]] = fold.weight
        return tuple(types[position] for position in range(len(self.program.results)))


@attrs.frozen(eq=False)
class PhaseTask:
    """Runs a phase; the targets take the folds' results, then the held columns."""

    phase: Phase
    inputs: tuple[Expression, ...]
    targets: tuple[int, ...]
    reads: frozenset[int]


@attrs.frozen(eq=False)
class SelectTask:
    """Gives each client the slices of a server value that its keys ask for."""

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
    """Tasks in an order in which they can run. Slot 0 is the argument.

    Attributes:
      tasks: The tasks.
      constants: The slots of literals, with their payloads.
      result: The result.
      slots: The number of slots.
      shared: The inputs of more than one phase.
    """

    tasks: tuple[Task, ...]
    constants: tuple[tuple[int, Payload], ...]
    result: Expression
    slots: int
    shared: frozenset[Expression]
