"""Runs programs whose operations are all bound, either once or for each client over whole columns."""

import operator
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import cast

from fedstack.computations.leaves.bound_operation import BoundOperation, stopped_by
from fedstack.computations.plan.program import Expression, Join, Operation, Program, Slot
from fedstack.computations.types.language import RetryableError
from fedstack.computations.values.columns import Column, ConstantColumn, Payload, zip_columns
from fedstack.errors import FedstackError, UnsupportedIntrinsicError
from fedstack.foundations.caches import made_once


def run_once(program: Program, inputs: Sequence[Payload], stops: Sequence[object] = ()) -> tuple[Payload, ...]:
    """Runs a program once.

    Args:
      program: The program. Every operation must be a `BoundOperation`.
      inputs: The payloads of the program's inputs.
      stops: Once this is not empty, no further step begins.

    Returns:
      The payloads of the program's results.

    Raises:
      CancelledError: If the program was stopped.
    """
    return tuple(_runner(program).run_until(inputs, stops))


class ProgramRunner:
    """Runs a program many times. All lookups are done once, in advance.

    Args:
      program: The program. Every operation must be a `BoundOperation`.
    """

    __slots__ = ("_constants", "_inputs", "_results", "_steps")

    def __init__(self, program: Program) -> None:
        self._inputs = program.inputs
        self._constants: list[object] = [None] * program.slots
        for slot, payload in program.constants:
            self._constants[slot] = payload
        self._steps = [
            (bound(step.operation), None if step.argument is None else reader(step.argument), step.target)
            for step in program.steps
        ]
        self._results = [reader(result) for result in program.results]

    def run(self, inputs: Sequence[Payload], client: int | None) -> list[Payload]:
        """Runs the program once.

        Args:
          inputs: The payloads of the program's inputs.
          client: The index of the client, for error messages; `None` on the server.

        Returns:
          The payloads of the program's results. The runner keeps no references to them.
        """
        values = self._constants.copy()
        for slot, payload in zip(self._inputs, inputs):
            values[slot] = payload
        for operation, argument, target in self._steps:
            payload = None if argument is None else argument(values)
            values[target] = operation.call(payload, client)
        return [result(values) for result in self._results]

    def run_until(self, inputs: Sequence[Payload], stops: Sequence[object]) -> list[Payload]:
        """Runs the program once on the server, and begins no further step once `stops` is not empty.

        Raises:
          CancelledError: If the program was stopped.
        """
        values = self._constants.copy()
        for slot, payload in zip(self._inputs, inputs):
            values[slot] = payload
        with stopped_by(stops):
            for operation, argument, target in self._steps:
                if stops:
                    raise CancelledError
                values[target] = operation.call(None if argument is None else argument(values))
        return [result(values) for result in self._results]


@made_once
def _runner(program: Program) -> ProgramRunner:
    return ProgramRunner(program)


@made_once
def max_parallel(program: Program) -> int | None:
    """Returns the maximum number of clients that may run a program concurrently; `None` means no limit."""
    operations = [step.operation for step in program.steps if isinstance(step.operation, BoundOperation)]
    return min((one.max_parallel for one in operations if one.max_parallel is not None), default=None)


@made_once
def prefers_columns(program: Program) -> bool:
    """Returns whether any operation of a program prefers columns; see `BoundOperation`."""
    return any(bound(step.operation).prefers_columns for step in program.steps)


@made_once
def lanes(program: Program) -> int:
    """Returns the number of clients that the operations of a program process in one call; see `BoundOperation`."""
    return max((bound(step.operation).lanes for step in program.steps), default=1)


@made_once
def least_seconds(program: Program) -> float:
    """Returns the time below which a call of an operation of a program is inefficient; see `BoundOperation`."""
    return max((bound(step.operation).least_seconds for step in program.steps), default=0.0)


def reader(expression: Expression) -> Callable[[Sequence[Payload]], Payload]:
    """Returns a function that evaluates an expression over the payloads in slots."""
    if isinstance(expression, Slot):
        return operator.itemgetter(expression.index)
    if isinstance(expression, Join):
        slots = [part.index for part in expression.parts if isinstance(part, Slot)]
        if len(slots) == len(expression.parts) > 1:
            return operator.itemgetter(*slots)
        readers = [reader(part) for part in expression.parts]
        return lambda values: tuple([read(values) for read in readers])
    source = reader(expression.source)
    member = cast("Callable[[object], object]", operator.itemgetter(expression.position))
    return lambda values: member(source(values))


def run_columns(
    program: Program, inputs: Sequence[Column], first_client: int, size: int, *, finds_first: bool = True
) -> tuple[Column, ...]:
    """Runs a program once for each of `size` clients, step by step.

    Args:
      program: The program. Every operation must be a `BoundOperation`.
      inputs: For each input, a column with the values of `size` clients.
      first_client: The index of the first client, for error messages.
      size: The number of clients.
      finds_first: Whether the error is that of the first client that fails in any step. If so, the clients before one
        that fails run again, since they have not run the later steps.

    Returns:
      A column for each result.

    Raises:
      FedstackError: The error of a client.
    """
    values: list[Column | None] = [None] * program.slots
    for slot, column in zip(program.inputs, inputs):
        values[slot] = column
    for slot, payload in program.constants:
        values[slot] = ConstantColumn(payload, size)
    for step in program.steps:
        argument = None if step.argument is None else read_column(step.argument, values, size)
        try:
            values[step.target] = bound(step.operation).call_column(argument, first_client, size)
        except FedstackError as error:
            before = 0 if error.client_index is None else error.client_index - first_client
            if finds_first and before > 0 and step is not program.steps[-1] and not isinstance(error, RetryableError):
                run_columns(program, [column.slice(0, before) for column in inputs], first_client, before)
            raise
    return tuple(read_column(result, values, size) for result in program.results)


def read_column(expression: Expression, values: Sequence[Column | None], size: int) -> Column:
    """Evaluates an expression over the columns in slots, for `size` clients."""
    if isinstance(expression, Slot):
        return cast(Column, values[expression.index])
    if isinstance(expression, Join):
        return zip_columns([read_column(part, values, size) for part in expression.parts], size)
    if isinstance(expression.source, Join):
        return read_column(expression.source.parts[expression.position], values, size)
    return read_column(expression.source, values, size).field(expression.position)


def bound(operation: Operation) -> BoundOperation:
    """Returns an operation after checking that an executor has bound it.

    Raises:
      UnsupportedIntrinsicError: If the operation is not bound.
    """
    if isinstance(operation, BoundOperation):
        return operation
    raise UnsupportedIntrinsicError(
        f"Expected an operation that an executor has bound, found the unbound operation {operation}; use a stack of "
        "executors that supports the operation"
    )
