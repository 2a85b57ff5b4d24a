"""Runs several JAX functions that follow each other in a program as one leaf."""

from asyncio import CancelledError
from collections.abc import Sequence
from typing import cast

import attrs
import numpy as np

from fedstack.computations.leaves.bound_operation import BoundOperation, FusedStep, FusedTensor, Fuser, is_stopped
from fedstack.computations.leaves.xla.compiled_code import CodeOfSizes, called
from fedstack.computations.leaves.xla.jax_api import Traced, jax, one_thread_device, results_of
from fedstack.computations.leaves.xla.jax_leaf import GroupLeaf, JaxLeaf
from fedstack.computations.leaves.xla.looped_leaf import LoopedLeaf, clients_at_once
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
from fedstack.computations.types.language import TensorType
from fedstack.computations.types.type_structure import exact_bytes, struct_of, tensor_leaves

# Programs take two or three milliseconds each to compile as one, and fewer calls would not make up for that.
_LEAST_JOINED = 16
_MOST_JOINED = 128  # the time to compile many programs as one grows faster than their number
_MOST_NAMES = 4


@attrs.frozen(eq=False)
class ChainedProgram:
    """A program of a chain.

    Attributes:
      program: The program.
      argument: The arrays that it takes.
      slices: The program runs for so many slices of the first axis of its arguments.
    """

    program: ArrayProgram
    argument: tuple[FusedTensor, ...]
    slices: int = 1

    def given(self, arguments: Sequence[Traced], found: Sequence[Sequence[Traced]]) -> list[Traced]:
        """Returns what the program takes, given the arguments of the chain and what earlier programs returned."""
        return [arguments[t.position] if t.step is None else found[t.step][t.position] for t in self.argument]


class ProgramChain(ArrayProgram):
    """Runs programs one after another. What one returns and another one takes stays an array of JAX.

    Few programs are compiled one by one. If XLA compiled them as one, results would have other bits, even with barriers
    between them, because it would compile each in another way than alone. Many short ones are compiled as one, each in
    the branch of a conditional, where XLA compiles it as alone: a conditional takes 0.1 µs, a call of JAX 5 µs.

    Args:
      programs: The programs.
      results: Which of the arrays that they return are the results of the chain.
      can_join: Whether they may be compiled as one: all arrays that they return are of use, as XLA compiles a program
        otherwise whose results are not, and none runs for long, as nobody could cancel the rest.
    """

    def __init__(
        self, programs: Sequence[ChainedProgram], results: Sequence[FusedTensor], *, can_join: bool = False
    ) -> None:
        self.name = programs[-1].program.name
        self.is_wide = any(one.program.is_wide for one in programs)
        self.can_loop = all(one.program.can_loop for one in programs)
        self._programs = programs
        self._results = results
        joins = (
            can_join
            and _LEAST_JOINED <= len(programs) <= _MOST_JOINED
            and one_thread_device() is not None
            and self.can_loop
            and all(one.program.is_short and one.program.is_wide == self.is_wide for one in programs)
            and all(one.slices == 1 for one in programs)
        )
        self._joined = CodeOfSizes(self._in_branches, self.name) if joins else None

    def trace(self, arguments: Sequence[Traced]) -> Sequence[Traced]:
        found: list[Sequence[Traced]] = []
        for one in self._programs:
            found.append(one.program.trace(jax().lax.optimization_barrier(one.given(arguments, found))))
        return self._chosen(found)

    def run(self, arguments: Sequence[object]) -> Sequence[Traced]:
        if self._joined is not None:
            return called(self._joined.of(), self.name, np.True_, *arguments, is_wide=self.is_wide)
        found: list[Sequence[Traced]] = []
        for one in self._programs:
            if is_stopped():
                raise CancelledError
            given = one.given(arguments, found)
            found.append(one.program.run(given) if one.slices == 1 else _sliced(one, given))
            _wait_for(found[-1])  # what has been dispatched cannot be cancelled, and reads the caller's memory
        return self._chosen(found)

    def run_loop(
        self, lanes: int, shared: Sequence[bool], clients: int, arguments: Sequence[object]
    ) -> Sequence[Traced]:
        found: list[Sequence[Traced]] = []
        for one in self._programs:
            given = one.given(arguments, found)
            own = [t.step is None and shared[t.position] for t in one.argument]
            found.append(one.program.run_loop(lanes, own, clients, given))
            _wait_for(found[-1])
        return self._chosen(found)

    def _in_branches(self, is_true: Traced, *arguments: Traced) -> Sequence[Traced]:
        found: list[Sequence[Traced]] = []
        for one in self._programs:
            found.append(_in_branch(is_true, one.program, one.given(arguments, found)))
        return self._chosen(found)

    def _chosen(self, found: Sequence[Sequence[Traced]]) -> Sequence[Traced]:
        return [found[one.step or 0][one.position] for one in self._results]


def _in_branch(is_true: Traced, program: ArrayProgram, arguments: Sequence[Traced]) -> Sequence[Traced]:
    """Runs a program in the branch of a conditional, whose condition XLA does not know."""

    def run(*given: Traced) -> list[Traced]:
        return list(program.trace(given))

    def skip(*_: Traced) -> list[Traced]:
        return [jax().numpy.zeros(one.shape, one.dtype) for one in results_of(run, arguments)]

    return jax().lax.cond(is_true, run, skip, *arguments)


def _wait_for(arrays: Sequence[Traced]) -> None:
    if not isinstance(arrays[0], np.ndarray):
        arrays[0].block_until_ready()


def _sliced(one: ChainedProgram, arguments: Sequence[Traced]) -> Sequence[Traced]:
    arrays = [np.asarray(argument) for argument in arguments]
    size = len(arrays[0]) // one.slices
    starts = range(0, len(arrays[0]), size)
    found = [one.program([array[start : start + size] for array in arrays]) for start in starts]
    return [np.concatenate(parts) for parts in zip(*found)]


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
        made_at = {(step, position) for step, tensors in enumerate(made) for position in range(len(tensors))}
        can_join = isinstance(leaves[0], GroupLeaf) and made_at <= used
        program = ProgramChain(chained, results, can_join=can_join)
        if isinstance(leaves[0], GroupLeaf):
            lanes = max(leaf.lanes for leaf in leaves)
            groups = [
                ChainedProgram(cast(GroupLeaf, leaf).group, step.argument, lanes // leaf.lanes)
                for leaf, step in zip(leaves, steps)
            ]
            return GroupLeaf(name, ProgramChain(groups, results, can_join=can_join), program, parameter, result, lanes)
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
