"""Runs compiled functions as leaves, for one client or for a group."""

from typing import Any

from fedstack.computations.leaves.bound_operation import ElementFold, FoldSource, FoldStep
from fedstack.computations.leaves.leaf import Leaf
from fedstack.computations.leaves.vectorized_leaf import VectorizedLeaf, stacked
from fedstack.computations.leaves.xla.compiled_fold import CompiledFold
from fedstack.computations.leaves.xla.jax_sequences import traced_flattener
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import exact_bytes, is_scalar, tensor_leaves, unflatten


class JaxLeaf(Leaf):
    """A leaf that runs a compiled function.

    Args:
      program: The function.
      name: The name of the computation in messages.
      parameter: The type of the argument; `None` if the computation has no parameter.
      result: The type of the result.
    """

    def __init__(self, program: ArrayProgram, name: str, parameter: Type | None, result: Type) -> None:
        super().__init__(name, parameter, result)
        self._convert = None
        self._snapshot = None  # the arrays of JAX never change
        self.program = program
        self._flatten = None if parameter is None else traced_flattener(parameter)
        self._scalars = [i for i, (_, tensor) in enumerate(tensor_leaves(result)) if is_scalar(tensor)]

    def evaluate(self, argument: object, /) -> object:
        arguments = [] if self._flatten is None else self._flatten(argument)
        found: list[Any] = list(self.program(arguments))
        for index in self._scalars:
            found[index] = found[index][()]
        return unflatten(iter(found), self.result)

    def element_fold(self, step: FoldStep) -> ElementFold | None:
        if not self.program.can_loop or self.parameter is None:
            return None
        # A loop is over elements of the same sizes, so all unknown sizes are those of elements.
        given = zip(step.argument, tensor_leaves(self.parameter))
        places = [place for place, (_, tensor) in given if exact_bytes(tensor) is None]
        unknown = [i for i, (_, tensor) in enumerate(tensor_leaves(step.element)) if exact_bytes(tensor) is None]
        is_of_elements = all(place.source == FoldSource.ELEMENT for place in places)
        if not is_of_elements or set(unknown) != {place.position for place in places}:
            return None
        return CompiledFold(self.program, step)


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
