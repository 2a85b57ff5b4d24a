"""Folds the elements of a sequence in a compiled loop, in which each step reads the state of the step before it."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.bound_operation import ElementFold, FoldSource, FoldStep
from fedstack.computations.leaves.leaf import raise_leaf_error
from fedstack.computations.leaves.vectorized_leaf import column_leaves
from fedstack.computations.leaves.xla.argument_memory import ArgumentLeaf, argument_memory, bytes_of, runs_of
from fedstack.computations.leaves.xla.compiled_code import CodeOfSizes, called
from fedstack.computations.leaves.xla.jax_api import Traced, jax
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
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
        self._is_open = exact_bytes(step.element) is None
        self.at_once = _FEW_ELEMENTS if self._is_open else _at_once(exact_bytes(step.element) or 0)
        tensors = [tensor for one in (step.state, step.element) for _, tensor in tensor_leaves(one)]
        self._is_wide = program.is_wide or any(tensor.dtype.itemsize > 4 for tensor in tensors)
        self._run = CodeOfSizes(self._folded, program.name)

    def __call__(
        self, state: Sequence[object], constants: Sequence[object], elements: Column, client: int | None
    ) -> Sequence[object]:
        try:
            found = state
            leaves = list(column_leaves(elements, self._step.element))
            for alike, start, stop in runs_of(leaves) if self._is_open else [(leaves, 0, len(elements))]:
                most = min(self.at_once, _at_once(bytes_of(alike)))
                for first in range(start, stop, most):
                    last = min(first + most, stop)
                    some = [(column.slice(first, last), tensor) for column, tensor in alike]
                    found = self._called(some, most, found, constants, last - first)
        except Exception as error:
            raise_leaf_error(error, self._program.name, client)
        return found

    def _called(
        self,
        leaves: Sequence[ArgumentLeaf],
        most: int,
        state: Sequence[object],
        constants: Sequence[object],
        count: int,
    ) -> Sequence[object]:
        rows = argument_memory.rows_of(leaves, most, shares=False)
        given = np.int32(count), list(state), rows, list(constants)
        run = self._run.of(*(cast("NDArray[Any]", row).shape for row in rows if self._is_open))
        found = called(run, self._program.name, *given, is_wide=self._is_wide)
        for one in found[:1]:
            one.block_until_ready()  # it reads memory that the next call fills again
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


def _at_once(size: int) -> int:
    """Returns how many elements of a size in bytes a call folds, a power of two."""
    size = max(1, size)
    most = max(min(_BYTES // size, _MOST_ELEMENTS), min(_MOST_BYTES // size, _FEW_ELEMENTS))
    return 1 << max(1, most).bit_length() - 1
