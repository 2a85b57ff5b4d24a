"""Folds the elements of a sequence in a compiled loop, in which each step reads the state of the step before it."""

from collections.abc import Sequence

import numpy as np

from fedstack.computations.leaves.bound_operation import ElementFold, FoldSource, FoldStep
from fedstack.computations.leaves.leaf import raise_leaf_error
from fedstack.computations.leaves.vectorized_leaf import column_leaves
from fedstack.computations.leaves.xla.argument_memory import argument_memory
from fedstack.computations.leaves.xla.jax_api import Traced, jax
from fedstack.computations.leaves.xla.xla_program import ArrayProgram, called, compiled
from fedstack.computations.types.type_structure import exact_bytes, tensor_leaves
from fedstack.computations.values.columns import Column

# The elements of a call, which are padded to a number that follows from their type, so that one program folds all.
_MOST_ELEMENTS = 1024
_BYTES = 256 << 10
# For large elements: the time to call a program would count for fewer.
_FEW_ELEMENTS = 16
_MOST_BYTES = 16 << 20


class CompiledFold(ElementFold):
    """A fold whose steps run one program.

    Args:
      program: The program.
      step: How it is called.
    """

    def __init__(self, program: ArrayProgram, step: FoldStep) -> None:
        self._program = program
        self._step = step
        size = max(1, exact_bytes(step.element) or 0)
        most = max(min(_BYTES // size, _MOST_ELEMENTS), min(_MOST_BYTES // size, _FEW_ELEMENTS))
        self.at_once = 1 << max(1, most).bit_length() - 1
        tensors = [tensor for one in (step.state, step.element) for _, tensor in tensor_leaves(one)]
        self._is_wide = program.is_wide or any(tensor.dtype.itemsize > 4 for tensor in tensors)
        self._run = compiled(self._folded)

    def __call__(
        self, state: Sequence[object], constants: Sequence[object], elements: Column, client: int | None
    ) -> Sequence[object]:
        try:
            leaves = list(column_leaves(elements, self._step.element))
            rows = argument_memory.rows_of(leaves, self.at_once, shares=False)
            given = np.int32(len(elements)), list(state), rows, list(constants)
            found = called(self._run, self._program.name, *given, is_wide=self._is_wide)
            for one in found[:1]:
                one.block_until_ready()  # it reads memory that the next call fills again
        except Exception as error:
            raise_leaf_error(error, self._program.name, client)
        return found

    def _folded(
        self, count: Traced, state: Sequence[Traced], rows: Sequence[Traced], constants: Sequence[Traced]
    ) -> Sequence[Traced]:
        lax = jax().lax

        def step(index: Traced, state: Sequence[Traced]) -> Sequence[Traced]:
            element = [lax.dynamic_index_in_dim(row, index, keepdims=False) for row in rows]
            # What XLA moves out of the loop, or fuses with the step before, it would compile in another way.
            index, state, element, same = lax.optimization_barrier((index, list(state), element, list(constants)))
            parts = {FoldSource.STATE: state, FoldSource.ELEMENT: element, FoldSource.CONSTANT: same}
            given = [parts[one.source][one.position] for one in self._step.argument]
            parts[FoldSource.RESULT] = list(self._program.trace(given))
            return [parts[one.source][one.position] for one in self._step.next_state]

        return lax.fori_loop(0, count, step, list(state))
