"""Runs several JAX functions that follow each other in a program as one leaf."""

from collections.abc import Sequence
from typing import cast

from fedstack.computations.leaves.bound_operation import BoundOperation, FusedStep, FusedTensor, Fuser
from fedstack.computations.leaves.vectorized_leaf import VectorizedLeaf, stacked
from fedstack.computations.leaves.xla.jax_leaf import JaxLeaf
from fedstack.computations.leaves.xla.looped_leaf import LoopedLeaf, clients_at_once
from fedstack.computations.leaves.xla.program_chain import ChainedProgram, ProgramChain
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
from fedstack.computations.types.language import TensorType, Type
from fedstack.computations.types.type_structure import exact_bytes, struct_of, tensor_leaves

_MOST_NAMES = 4


class GroupLeaf(VectorizedLeaf):
    """A vectorized function of JAX.

    Args:
      name: The name of the function.
      group: The function for all lanes.
      program: The function for one client.
      parameter: The type of the argument of one client.
      result: The type of the result of one client.
      lanes: The number of lanes.
    """

    def __init__(
        self, name: str, group: ArrayProgram, program: ArrayProgram, parameter: Type, result: Type, lanes: int
    ) -> None:
        together = JaxLeaf(group, name, stacked(parameter, lanes), stacked(result, lanes))
        alone = JaxLeaf(program, name, parameter, result)
        super().__init__(together, parameter, result, lanes, alone)
        self.elements_at_once = lanes
        self.group = group
        self.program = program
        self.element_fold = alone.element_fold


class _JaxFuser(Fuser):
    """Fuses functions that are called in the same way: alone, in a compiled loop, or vectorized."""

    def fuse(
        self, inputs: Sequence[TensorType], steps: Sequence[FusedStep], results: Sequence[FusedTensor]
    ) -> BoundOperation:
        names = list(dict.fromkeys(step.operation.name for step in steps))
        name = ", ".join(names[:_MOST_NAMES] + ["…"] * (len(names) > _MOST_NAMES))
        made = [[tensor for _, tensor in tensor_leaves(step.operation.result)] for step in steps]
        parameter = struct_of((None, tensor) for tensor in inputs)
        result = struct_of((None, made[one.step or 0][one.position]) for one in results)
        leaves = [cast("JaxLeaf | LoopedLeaf | GroupLeaf", step.operation) for step in steps]
        chained = [ChainedProgram(leaf.program, step.argument) for leaf, step in zip(leaves, steps)]
        used = {(one.step, one.position) for one in (*results, *(one for step in steps for one in step.argument))}
        uses_all = used >= {(step, position) for step, some in enumerate(made) for position in range(len(some))}
        program = ProgramChain(chained, results, uses_all=uses_all)
        if isinstance(leaves[0], GroupLeaf):
            lanes = max(leaf.lanes for leaf in leaves)
            groups = [
                ChainedProgram(cast(GroupLeaf, leaf).group, step.argument, lanes // leaf.lanes)
                for leaf, step in zip(leaves, steps)
            ]
            return GroupLeaf(name, ProgramChain(groups, results, uses_all=uses_all), program, parameter, result, lanes)
        alone = JaxLeaf(program, name, parameter, result)
        if isinstance(leaves[0], LoopedLeaf):
            return LoopedLeaf(program, parameter, result, clients_at_once(parameter, result), alone)
        return alone


_of_calls, _of_loops, _of_groups = _JaxFuser(), _JaxFuser(), _JaxFuser()


def fuser_of(leaf: BoundOperation) -> Fuser | None:
    """Returns what fuses a JAX function with others; `None` if it has no tensors, or tensors of unknown sizes."""
    for type_spec in (leaf.parameter, leaf.result):
        if type_spec is None or exact_bytes(type_spec) is None or not list(tensor_leaves(type_spec)):
            return None
    if isinstance(leaf, GroupLeaf):
        return _of_groups
    return _of_loops if isinstance(leaf, LoopedLeaf) else _of_calls
