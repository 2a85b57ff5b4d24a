"""Replaces neighbouring steps of a program with one step, where their runtime makes one operation of several.

A program that alternates between steps of a runtime and other steps keeps its order, except that steps which do not
need a result of the runtime run before it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import attrs

from fedstack.computations.leaves.bound_operation import BoundOperation, FusedStep, FusedTensor, Fuser
from fedstack.computations.plan.program import Expression, Join, Pick, Program, ProgramStep, Slot, pick, replaced
from fedstack.computations.plan.tasks import slots_read
from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.foundations.caches import made_once

# The slot of a step's result, and the position of a tensor in it.
_Output = tuple[int, int]


def fused(program: Program) -> Program:
    """Returns a linked program that has the same results, in which steps of one runtime are one step where possible."""
    return _fused(program) or program


@made_once
def _fused(program: Program) -> Program | None:
    if sum(_fuser_of(step) is not None for step in program.steps) < 2:
        return None
    steps: list[ProgramStep] = []
    results: tuple[Expression, ...] = program.results
    slots = program.slots
    waiting = list(program.steps)
    while waiting:
        group, before, after = _next_group(waiting)
        steps += before
        if len(group) < 2:
            steps += group
            waiting = after
            continue
        step, made = _fused_step(group, slots, [*(s.argument for s in after if s.argument is not None), *results])
        slots += 1
        steps.append(step)
        waiting = [
            one if one.argument is None else attrs.evolve(one, argument=replaced(one.argument, made.get))
            for one in after
        ]
        results = tuple([replaced(result, made.get) for result in results])
    if len(steps) == len(program.steps):
        return None
    return Program(program.inputs, program.constants, tuple(steps), results, slots)


def _fuser_of(step: ProgramStep) -> Fuser | None:
    return step.operation.fuser if isinstance(step.operation, BoundOperation) else None


def _next_group(steps: Sequence[ProgramStep]) -> tuple[list[ProgramStep], list[ProgramStep], list[ProgramStep]]:
    """Returns the first steps with one fuser, the steps that run before them, and those that run after them."""
    group: list[ProgramStep] = []
    before: list[ProgramStep] = []
    made: set[int] = set()
    for index, step in enumerate(steps):
        fuser = _fuser_of(step)
        if fuser is not None and (not group or fuser is _fuser_of(group[0])):
            group.append(step)
            made.add(step.target)
        elif fuser is None and (step.argument is None or made.isdisjoint(slots_read([step.argument]))):
            before.append(step)
        else:
            return group, before, list(steps[index:])
    return group, before, []


def _fused_step(
    group: Sequence[ProgramStep], slot: int, readers: Sequence[Expression]
) -> tuple[ProgramStep, Mapping[int, Expression]]:
    """Returns the step that replaces a group, and for each slot of the group the expression that replaces it.

    Args:
      group: The steps of the group.
      slot: The slot for the result of the new step.
      readers: All expressions that may read results of the group.
    """
    operations = [cast(BoundOperation, step.operation) for step in group]
    number = {step.target: index for index, step in enumerate(group)}
    inside = {step.target: _tensors_of(step.target, one.result) for step, one in zip(group, operations)}
    inputs: dict[Expression, tuple[int, TensorType]] = {}
    steps: list[FusedStep] = []
    for step, operation in zip(group, operations):
        argument: list[FusedTensor] = []
        leaves = (
            ()
            if step.argument is None
            else _leaves(replaced(step.argument, inside.get), cast(Type, operation.parameter))
        )
        for leaf, tensor in leaves:
            output = _output(leaf, number)
            if output is not None:
                argument.append(FusedTensor(number[output[0]], output[1]))
            else:
                position, _ = inputs.setdefault(leaf, (len(inputs), tensor))
                argument.append(FusedTensor(None, position))
        steps.append(FusedStep(operation, tuple(argument)))
    read = [output for reader in readers for output in _outputs(replaced(reader, inside.get), number)]
    results = {output: position for position, output in enumerate(dict.fromkeys(read or [(group[-1].target, 0)]))}
    tensors = [tensor for _, tensor in inputs.values()]
    fuser = cast(Fuser, operations[0].fuser)
    operation = fuser.fuse(tensors, steps, [FusedTensor(number[target], index) for target, index in results])

    def outside(target: int) -> Iterator[Expression]:
        # What nobody reads may be anything.
        return (Pick(Slot(slot), results.get((target, index), 0)) for index in itertools.count())

    made = {step.target: _made(one.result, outside(step.target)) for step, one in zip(group, operations)}
    return ProgramStep(operation, Join(tuple(inputs)), slot), made


def _tensors_of(slot: int, type_spec: Type) -> Expression:
    """Returns an expression for the result of a step, in which each tensor is picked from the slot of the step."""
    return _made(type_spec, (Pick(Slot(slot), position) for position in itertools.count()))


def _made(type_spec: Type, tensors: Iterator[Expression]) -> Expression:
    if isinstance(type_spec, StructType):
        return Join(tuple([_made(member, tensors) for _, member in fields_of(type_spec)]))
    return next(tensors)


def _leaves(expression: Expression, type_spec: Type) -> Iterator[tuple[Expression, TensorType]]:
    """Yields an expression and the type of each tensor of a value."""
    if isinstance(type_spec, StructType):
        for position, (_, member) in enumerate(fields_of(type_spec)):
            yield from _leaves(pick(expression, position), member)
    else:
        yield expression, cast(TensorType, type_spec)


def _output(expression: Expression, slots: Mapping[int, int]) -> _Output | None:
    """Returns which tensor of which of the slots an expression reads; `None` if it reads something else."""
    if isinstance(expression, Pick) and isinstance(expression.source, Slot) and expression.source.index in slots:
        return expression.source.index, expression.position
    return None


def _outputs(expression: Expression, slots: Mapping[int, int]) -> Iterator[_Output]:
    if (output := _output(expression, slots)) is not None:
        yield output
    elif isinstance(expression, Join):
        for part in expression.parts:
            yield from _outputs(part, slots)
    elif isinstance(expression, Pick):
        yield from _outputs(expression.source, slots)
