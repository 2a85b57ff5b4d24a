"""Runs compiled functions as leaves."""

from collections.abc import Sized
from typing import Any, cast

from fedstack.computations.leaves.bound_operation import ElementFold, FoldStep
from fedstack.computations.leaves.leaf import Leaf
from fedstack.computations.leaves.xla.compiled_fold import CompiledFold
from fedstack.computations.leaves.xla.jax_sequences import ROWS, traced_flattener, traced_leaves
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import is_scalar, tensor_leaves, unflatten
from fedstack.errors import InvalidValueError


class JaxLeaf(Leaf):
    """A leaf that runs a compiled function.

    Args:
      program: The function.
      name: The name of the computation in messages.
      parameter: The type of the argument; `None` if the computation has no parameter.
      result: The type of the result.
      empty: The function for arguments without rows, if the number of rows is not declared; `None` if there is none.
    """

    def __init__(
        self,
        program: ArrayProgram,
        name: str,
        parameter: Type | None,
        result: Type,
        empty: ArrayProgram | None = None,
    ) -> None:
        super().__init__(name, parameter, result)
        self._convert = None
        self._snapshot = None  # the arrays of JAX never change
        self.program = program
        self._empty = empty
        self._flatten = None if parameter is None else traced_flattener(parameter)
        leaves = [] if parameter is None else traced_leaves(parameter)
        self._open = [index for index, (_, name) in enumerate(leaves) if name == ROWS]
        self._scalars = [i for i, (_, tensor) in enumerate(tensor_leaves(result)) if is_scalar(tensor)]

    def evaluate(self, argument: object, /) -> object:
        arguments = [] if self._flatten is None else self._flatten(argument)
        rows = {len(cast("Sized", arguments[index])) for index in self._open}
        if len(rows) > 1:
            raise InvalidValueError(
                f"Expected arrays with the same number of rows as arguments of {self.name!r}, found {sorted(rows)}; "
                "pass arrays of one size, or declare the sizes of those that differ"
            )
        program: ArrayProgram | None = self.program if 0 not in rows else self._empty
        if program is None:
            raise InvalidValueError(
                f"Expected at least one row in the arguments of {self.name!r}, found none; leave out clients without "
                "data, or let the function return a result for arrays without rows"
            )
        found: list[Any] = list(program(arguments))
        for index in self._scalars:
            found[index] = found[index][()]
        return unflatten(iter(found), self.result)

    def element_fold(self, step: FoldStep) -> ElementFold | None:
        return CompiledFold(self.program, step) if self.program.can_loop else None
