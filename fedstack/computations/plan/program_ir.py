"""Writes programs as functions of the language, and reads them back, so that they can be sent to another process.

A program becomes one function from a struct of its inputs to a struct of its results. Reading traces that function, so
that a received program is checked like any computation.
"""

import itertools
from collections.abc import Sequence
from typing import cast

import numpy as np

from fedstack.computations.plan.graph import Function, type_of
from fedstack.computations.plan.program import (
    DataSource,
    Expression,
    IntrinsicSource,
    Join,
    LeafSource,
    Program,
    ProgramBuilder,
    ProgramStep,
    Slot,
    pick,
)
from fedstack.computations.plan.render import (
    block,
    call,
    call_intrinsic,
    function_of,
    in_order,
    literal,
    reference,
    selection,
    struct,
)
from fedstack.computations.types.language import StructType, TensorType, Type, computation_pb2
from fedstack.computations.types.type_structure import contains_federated, fields_of, type_from_proto
from fedstack.errors import InvalidComputationError
from fedstack.foundations.caches import made_once

Computation = computation_pb2.Computation


def program_to_ir(program: Program, inputs: Sequence[Type], results: Sequence[Type]) -> Computation:
    """Returns the function of a program.

    Args:
      program: The program, whose sources have not been replaced by operations.
      inputs: The types of its inputs.
      results: The types of its results, which have the names of their members.

    Returns:
      A function of a struct of the inputs, in order; one without a parameter if there are none.

    Raises:
      InvalidComputationError: If it has a constant that the language has no literal for.
    """
    writer = _Writer()
    if not inputs:
        return function_of("", None, writer.body(program, [], results))
    whole = reference("inputs", StructType(list(inputs)))
    members = [selection(whole, index) for index in range(len(inputs))]
    return function_of("inputs", StructType(list(inputs)), writer.body(program, members, results))


def program_from_ir(function: Function, inputs: int) -> Program:
    """Returns the program of a traced function of a struct of inputs that returns a struct.

    It is made once and stored with the function.

    Raises:
      InvalidComputationError: If the function has another number of inputs, or federated ones, or does not return a
        struct.
    """
    program = _program_of(function)
    if len(program.inputs) != inputs:
        raise InvalidComputationError(f"Expected a function of {inputs} inputs, found one of {len(program.inputs)}")
    return program


@made_once
def _program_of(function: Function) -> Program:
    parameter = function.parameter
    inputs = 0 if parameter is None else len(_struct_fields(parameter.type, "a function of a struct of its inputs"))
    if parameter is not None and contains_federated(parameter.type):
        raise InvalidComputationError(f"Expected a function of local values, found one of {parameter.type}")
    results = len(_struct_fields(type_of(function.result), "a function that returns a struct of its results"))
    builder = ProgramBuilder()
    argument = Join(tuple([builder.input() for _ in range(inputs)])) if parameter is not None else None
    whole = builder.inline(function, argument)
    return builder.finish([pick(whole, position) for position in range(results)])


def _struct_fields(type_spec: Type, wanted: str) -> Sequence[tuple[str | None, Type]]:
    if not isinstance(type_spec, StructType):
        raise InvalidComputationError(f"Expected {wanted}, found {type_spec}")
    return fields_of(type_spec)


class _Writer:
    """Writes one computation; the names of its locals are unique over all of it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def body(self, program: Program, inputs: Sequence[Computation], results: Sequence[Type]) -> Computation:
        """Returns what computes the struct of a program's results."""
        found, locals_ = self._run(program, inputs)
        return block(locals_, struct([_named(value, wanted) for value, wanted in zip(found, results)]))

    def _run(
        self, program: Program, inputs: Sequence[Computation]
    ) -> tuple[list[Computation], list[computation_pb2.Block.Local]]:
        values: dict[int, Computation] = dict(zip(program.inputs, inputs))
        for slot, payload in program.constants:
            values[slot] = literal(payload, _type_of(payload))
        locals_: list[computation_pb2.Block.Local] = []
        for step in program.steps:
            value = self._step(step, values)
            name = f"v{next(self._numbers)}"
            locals_.append(computation_pb2.Block.Local(name=name, value=value))
            values[step.target] = reference(name, type_from_proto(value.type))
        return [_read(result, values) for result in program.results], locals_

    def _step(self, step: ProgramStep, values: dict[int, Computation]) -> Computation:
        source = step.operation
        if isinstance(source, LeafSource):
            return call(source.computation, None if step.argument is None else _read(step.argument, values))
        if isinstance(source, DataSource):
            return source.computation
        if isinstance(source, IntrinsicSource):
            return self._intrinsic(source, cast(Join, step.argument), values)
        raise InvalidComputationError(f"Expected what a step is to run, found {source}, which has been bound already")

    def _intrinsic(self, source: IntrinsicSource, argument: Join, values: dict[int, Computation]) -> Computation:
        operands = [_read(part, values) for part in argument.parts]
        count = len(source.arguments)
        # Programs have no names of members, and some intrinsics require two arguments with the same names.
        arguments = [_named(value, wanted) for value, wanted in zip(operands, source.arguments)]
        captures = iter(operands[count:])
        functions = [
            self._function(program, parameter, list(itertools.islice(captures, captured)))
            for program, captured, parameter in zip(source.functions, source.captures, source.parameters)
        ]
        return call_intrinsic(source.uri, in_order(source.uri, functions, arguments), source.type, source.arguments)

    def _function(self, program: Program, parameter: Type, captures: Sequence[Computation]) -> Computation:
        """Returns a function that refers to the names around it."""
        name = f"arg{next(self._numbers)}"
        (result,), locals_ = self._run(program, [reference(name, parameter), *captures])
        return function_of(name, parameter, block(locals_, result))


def _read(expression: Expression, values: dict[int, Computation]) -> Computation:
    if isinstance(expression, Slot):
        return values[expression.index]
    if isinstance(expression, Join):
        return struct([_read(part, values) for part in expression.parts])
    return selection(_read(expression.source, values), expression.position)


def _named(value: Computation, wanted: Type) -> Computation:
    """Returns a value with the names of a type that it has otherwise."""
    found = type_from_proto(value.type)
    if found is wanted or not isinstance(wanted, StructType) or found.is_equivalent_to(wanted):
        return value
    fields = fields_of(wanted)
    members = [_named(selection(value, index), member) for index, (_, member) in enumerate(fields)]
    return struct(members, [name for name, _ in fields])


def _type_of(payload: object) -> Type:
    """Returns the type of a literal's payload."""
    if isinstance(payload, tuple):
        return StructType([_type_of(member) for member in cast("tuple[object, ...]", payload)])
    if isinstance(payload, bytes):
        return TensorType(np.str_)
    if not isinstance(payload, (np.generic, np.ndarray)):
        raise InvalidComputationError(
            f"Expected a constant that can be written as a literal, found `{type(payload).__name__}`; compute it in a "
            "leaf function instead"
        )
    array = np.asarray(cast(np.ndarray, payload))
    return TensorType(np.str_ if array.dtype == np.object_ else array.dtype, array.shape)
