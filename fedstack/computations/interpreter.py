"""Runs programs whose operations are all bound: once, or once per client over whole columns."""

from collections.abc import Sequence
from typing import cast

from fedstack.computations.columns import Column, ConstantColumn, zip_columns
from fedstack.computations.leaf_runtimes import Leaf
from fedstack.computations.program import Expression, Join, Operation, Program, Slot
from fedstack.errors import UnsupportedIntrinsicError


def run_once(program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
    """Runs a program once.

    Args:
      program: The program; every operation is a `Leaf`.
      inputs: The payloads of its inputs.

    Returns:
      The payloads of its results.
    """
    values: list[object] = [None] * program.slots
    for slot, payload in zip(program.inputs, inputs):
        values[slot] = payload
    for slot, payload in program.constants:
        values[slot] = payload
    for step in program.steps:
        argument = None if step.argument is None else read(step.argument, values)
        values[step.target] = bound(step.operation).call(argument)
    return tuple(read(result, values) for result in program.results)


def run_client(program: Program, inputs: Sequence[object], client: int) -> list[object]:
    """Runs a program once, for one of many clients.

    Args:
      program: The program; every operation is a `Leaf`, as somebody has checked.
      inputs: The client's payloads of its inputs.
      client: The index of the client, for messages.

    Returns:
      The payloads of its results, to which nothing here refers any more.
    """
    values: list[object] = [None] * program.slots
    for slot, payload in zip(program.inputs, inputs):
        values[slot] = payload
    for slot, payload in program.constants:
        values[slot] = payload
    for step in program.steps:
        argument = None if step.argument is None else read(step.argument, values)
        values[step.target] = cast(Leaf, step.operation).call_client(argument, client)
    return [read(result, values) for result in program.results]


def read(expression: Expression, values: Sequence[object]) -> object:
    """Evaluates an expression over payloads."""
    if isinstance(expression, Slot):
        return values[expression.index]
    if isinstance(expression, Join):
        return tuple([read(part, values) for part in expression.parts])
    return cast("tuple[object, ...]", read(expression.source, values))[expression.position]


def run_columns(program: Program, inputs: Sequence[Column], first_client: int, size: int) -> tuple[Column, ...]:
    """Runs a program once for each of `size` clients, step by step.

    Args:
      program: The program; every operation is a `Leaf`.
      inputs: A column of `size` clients per input.
      first_client: The index of the first of them, for messages.
      size: The number of clients.

    Returns:
      A column per result.
    """
    values: list[Column | None] = [None] * program.slots
    for slot, column in zip(program.inputs, inputs):
        values[slot] = column
    for slot, payload in program.constants:
        values[slot] = ConstantColumn(payload, size)
    for step in program.steps:
        argument = None if step.argument is None else read_column(step.argument, values, size)
        values[step.target] = bound(step.operation).call_column(argument, first_client, size)
    return tuple(read_column(result, values, size) for result in program.results)


def read_column(expression: Expression, values: Sequence[Column | None], size: int) -> Column:
    """Evaluates an expression over columns."""
    if isinstance(expression, Slot):
        return cast(Column, values[expression.index])
    if isinstance(expression, Join):
        return zip_columns([read_column(part, values, size) for part in expression.parts], size)
    if isinstance(expression.source, Join):
        return read_column(expression.source.parts[expression.position], values, size)
    return read_column(expression.source, values, size).field(expression.position)


def bound(operation: Operation) -> Leaf:
    """Returns an operation that an executor has bound.

    Raises:
      UnsupportedIntrinsicError: If none has.
    """
    if isinstance(operation, Leaf):
        return operation
    raise UnsupportedIntrinsicError(f"Expected an operation that an executor has bound, found {operation}")
