"""Writes programs as functions of the language, and reads them, so that they can be sent to other processes.

A program becomes one function from a struct of its inputs to a struct of its results. Reading a program traces this
function, so a received program is checked like any other computation.
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
    """Returns a program as a function of the language.

    Args:
      program: The program, whose sources have not been replaced with operations.
      inputs: The types of the program's inputs.
      results: The types of the program's results, which provide the names of struct members.

    Returns:
      A function of a struct of the inputs, in order, or a function without a parameter if there are no inputs.

    Raises:
      InvalidComputationError: If the program contains a constant that cannot be written as a literal.
    """
    writer = _Writer()
    if not inputs:
        return function_of("", None, writer.body(program, [], results))
    whole = reference("inputs", StructType(list(inputs)))
    members = [selection(whole, index) for index in range(len(inputs))]
    return function_of("inputs", StructType(list(inputs)), writer.body(program, members, results))


def program_from_ir(function: Function, inputs: int) -> Program:
    """Returns the program of a traced function from a struct of inputs to a struct of results.

    The program is created once and cached with the function.

    Raises:
      InvalidComputationError: If the function has the wrong number of inputs or a federated input, or does not return a
        struct.
    """
    program = _program_of(function)
    if len(program.inputs) != inputs:
        raise InvalidComputationError(
            f"Expected a function of {inputs} inputs, found a function of {len(program.inputs)} inputs; send one value "
            "for each input of the function"
        )
    return program


@made_once
def _program_of(function: Function) -> Program:
    parameter = function.parameter
    inputs = 0 if parameter is None else len(_struct_fields(parameter.type, "the parameter to be a struct of inputs"))
    if parameter is not None and contains_federated(parameter.type):
        raise InvalidComputationError(
            f"Expected a function of local values, found a function of federated values: {parameter.type}"
        )
    results = len(_struct_fields(type_of(function.result), "the result to be a struct of results"))
    builder = ProgramBuilder()
    argument = Join(tuple([builder.input() for _ in range(inputs)])) if parameter is not None else None
    whole = builder.inline(function, argument)
    return builder.finish([pick(whole, position) for position in range(results)])


def _struct_fields(type_spec: Type, wanted: str) -> Sequence[tuple[str | None, Type]]:
    if not isinstance(type_spec, StructType):
        raise InvalidComputationError(f"Expected {wanted}, found {type_spec}")
    return fields_of(type_spec)


class _Writer:
    """Writes one computation. The names of locals are unique within the whole computation."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def body(self, program: Program, inputs: Sequence[Computation], results: Sequence[Type]) -> Computation:
        """Returns a computation whose value is the struct of a program's results."""
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
        raise InvalidComputationError(f"Expected a source that has not been bound, found the bound operation {source}")

    def _intrinsic(self, source: IntrinsicSource, argument: Join, values: dict[int, Computation]) -> Computation:
        operands = [_read(part, values) for part in argument.parts]
        count = len(source.arguments)
        # Programs do not store member names, but some intrinsics require two arguments with equal names.
        arguments = [_named(value, wanted) for value, wanted in zip(operands, source.arguments)]
        captures = iter(operands[count:])
        functions = [
            self._function(program, parameter, list(itertools.islice(captures, captured)))
            for program, captured, parameter in zip(source.functions, source.captures, source.parameters)
        ]
        return call_intrinsic(source.uri, in_order(source.uri, functions, arguments), source.type, source.arguments)

    def _function(self, program: Program, parameter: Type, captures: Sequence[Computation]) -> Computation:
        """Returns a function that refers to names in the enclosing scope."""
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
    """Returns `value` with the member names of `wanted`, which otherwise has the same structure."""
    found = type_from_proto(value.type)
    if found is wanted or not isinstance(wanted, StructType) or found.is_equivalent_to(wanted):
        return value
    fields = fields_of(wanted)
    members = [_named(selection(value, index), member) for index, (_, member) in enumerate(fields)]
    return struct(members, [name for name, _ in fields])


def _type_of(payload: object) -> Type:
    """Returns the type of a literal, given its payload."""
    if isinstance(payload, tuple):
        return StructType([_type_of(member) for member in cast("tuple[object, ...]", payload)])
    if isinstance(payload, bytes):
        return TensorType(np.str_)
    if not isinstance(payload, (np.generic, np.ndarray)):
        raise InvalidComputationError(
            f"Expected a constant that can be written as a literal, found `{type(payload).__name__}`; compute the "
            "constant in a leaf function instead"
        )
    array = np.asarray(cast(np.ndarray, payload))
    return TensorType(np.str_ if array.dtype == np.object_ else array.dtype, array.shape)
