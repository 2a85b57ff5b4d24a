"""Runs programs for elements of sequences: many at a time, or folded in one call, if their operations can do so."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedstack.computations.leaves.bound_operation import ElementFold, FoldSource, FoldStep, FoldTensor
from fedstack.computations.plan.interpreter import bound, read_column, reader
from fedstack.computations.plan.program import Expression, Pick, Program, Slot, pick
from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import (
    contains_sequence,
    exact_bytes,
    fields_of,
    flatten,
    is_scalar,
    tensor_leaves,
    unflatten,
)
from fedstack.computations.values.columns import Column, ConstantColumn
from fedstack.computations.values.element_columns import element_columns
from fedstack.computations.values.tensor_values import read_only
from fedstack.foundations.caches import made_once


@made_once
def elements_at_once(program: Program) -> int:
    """Returns for how many elements a program runs best in one call; 0 if it runs for each when it is read."""
    found = [bound(step.operation).elements_at_once for step in program.steps]
    return max(found) if found and all(found) else 0


def run_elements(program: Program, inputs: Sequence[Column], first: int, client: int | None) -> Column:
    """Runs a program once for each of several consecutive elements of a sequence, step by step.

    Args:
      program: The program. All its operations process several elements in one call.
      inputs: For each input, a column with the values of the elements.
      first: The index of the first element in its sequence.
      client: The index of the client that has the sequence, for error messages; `None` on the server.

    Returns:
      The column of the program's result.
    """
    size = len(inputs[0])
    values: list[Column | None] = [None] * program.slots
    for slot, column in zip(program.inputs, inputs):
        values[slot] = column
    for slot, payload in program.constants:
        values[slot] = ConstantColumn(payload, size)
    for step in program.steps:
        argument = ConstantColumn((), size) if step.argument is None else read_column(step.argument, values, size)
        values[step.target] = bound(step.operation).call_elements(argument, first, client)
    return read_column(program.results[0], values, size)


class ProgramFold:
    """A program that folds a sequence in compiled loops.

    Args:
      program: The program.
      fold: What folds the elements.
      step: How it does so.
      constants: The expressions of the tensors that are the same for all elements.
    """

    def __init__(self, program: Program, fold: ElementFold, step: FoldStep, constants: Sequence[Expression]) -> None:
        self._program = program
        self._fold = fold
        self._step = step
        self._constants = [reader(expression) for expression in constants]
        self._scalars = [is_scalar(tensor) for _, tensor in tensor_leaves(step.state)]

    def run(self, elements: Iterable[object], state: object, captures: Sequence[object], client: int | None) -> object:
        """Folds a sequence, and returns the last state.

        Args:
          elements: The sequence.
          state: The first state.
          captures: The captures of the program.
          client: The index of the client that has the sequence, for error messages; `None` on the server.
        """
        program, element = self._program, self._step.element
        values: list[object] = [None] * program.slots
        for slot, payload in (*program.constants, *zip(program.inputs[1:], captures)):
            values[slot] = payload
        constants = [read(values) for read in self._constants]
        tensors: Sequence[object] = flatten(state, self._step.state)
        empty = True
        for column in element_columns(elements, element, 0, self._fold.at_once):
            tensors = self._fold(tensors, constants, column, client)
            empty = False
        if empty:
            return state
        arrays = [np.asarray(one) for one in tensors]
        found = [array[()] if scalar else read_only(array) for array, scalar in zip(arrays, self._scalars)]
        return unflatten(iter(found), self._step.state)


def fold_of(program: Program, state: Type, element: Type) -> ProgramFold | None:
    """Returns the fold of a program of a state and an element, and of captures; `None` if it has none.

    Args:
      program: The program, which returns the next state. Its first input is a struct of a state and an element.
      state: The type of the state.
      element: The type of an element.
    """
    if len(program.steps) != 1 or exact_bytes(state) is None:
        return None
    (step,) = program.steps
    operation = bound(step.operation)
    parameter = operation.parameter
    if parameter is None or step.argument is None or exact_bytes(operation.result) is None:
        return None
    if contains_sequence(parameter):
        return None
    pair = Slot(program.inputs[0])
    places = {
        expression: (FoldTensor(source, position), tensor)
        for source, root, type_spec in (
            (FoldSource.STATE, pick(pair, 0), state),
            (FoldSource.ELEMENT, pick(pair, 1), element),
            (FoldSource.RESULT, Slot(step.target), operation.result),
        )
        for position, (expression, tensor) in enumerate(tensors_of(root, type_spec))
    }
    constants: dict[Expression, int] = {}

    def placed(expression: Expression, tensor: TensorType) -> FoldTensor | None:
        if _root(expression) in (pair, Slot(step.target)):
            found, known = places.get(expression, (None, None))
            return found if known == tensor else None
        return FoldTensor(FoldSource.CONSTANT, constants.setdefault(expression, len(constants)))

    argument = [placed(*one) for one in tensors_of(step.argument, parameter)]
    following = [placed(*one) for one in tensors_of(program.results[0], state)]
    if None in argument or None in following or not following:
        return None
    given = FoldStep(state, element, tuple(filter(None, argument)), tuple(filter(None, following)))
    found = operation.element_fold(given)
    return None if found is None else ProgramFold(program, found, given, list(constants))


def tensors_of(expression: Expression, type_spec: Type) -> Iterator[tuple[Expression, TensorType]]:
    """Yields an expression and the type of each tensor of a value, which consists of tensors and structs."""
    if isinstance(type_spec, TensorType):
        yield expression, type_spec
    elif isinstance(type_spec, StructType):
        for position, (_, member) in enumerate(fields_of(type_spec)):
            yield from tensors_of(pick(expression, position), member)


def _root(expression: Expression) -> Expression:
    while isinstance(expression, Pick):
        expression = expression.source
    return expression
