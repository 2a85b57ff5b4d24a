"""Runs functions of arrays that read each other's results one after another."""

from asyncio import CancelledError
from collections.abc import Sequence

import attrs
import numpy as np

from fedstack.computations.leaves.bound_operation import FusedTensor, is_stopped
from fedstack.computations.leaves.xla.jax_api import Traced, jax, one_thread_device, results_of
from fedstack.computations.leaves.xla.xla_program import ArrayProgram, CodeOfSizes, called

# Programs take two or three milliseconds each to compile as one, and fewer calls would not make up for that.
_LEAST_JOINED = 16


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


class ProgramChain(ArrayProgram):
    """Runs programs one after another. What one returns and another one takes stays an array of JAX.

    Few programs are compiled one by one. If XLA compiled them as one, results would have other bits, even with barriers
    between them, because it would compile each in another way than alone. Many are compiled as one, each in the branch
    of a conditional, where XLA compiles it as alone: a conditional takes 0.1 µs, a call of JAX 5 µs.

    Args:
      programs: The programs.
      results: Which of the arrays that they return are the results of the chain.
      uses_all: Whether each of these arrays is a result or the argument of another program. XLA compiles a program
        whose results are not all of use in another way.
    """

    def __init__(
        self, programs: Sequence[ChainedProgram], results: Sequence[FusedTensor], *, uses_all: bool = False
    ) -> None:
        self.name = programs[-1].program.name
        self.is_wide = any(one.program.is_wide for one in programs)
        self.can_loop = all(one.program.can_loop for one in programs)
        self._programs = programs
        self._results = results
        joins = (
            uses_all
            and len(programs) >= _LEAST_JOINED
            and one_thread_device() is not None
            and self.can_loop
            and all(one.slices == 1 and one.program.is_wide == self.is_wide for one in programs)
        )
        self._joined = CodeOfSizes(self._in_branches, self.name) if joins else None

    def trace(self, arguments: Sequence[Traced]) -> Sequence[Traced]:
        found: list[Sequence[Traced]] = []
        for one in self._programs:
            given = [arguments[t.position] if t.step is None else found[t.step][t.position] for t in one.argument]
            found.append(one.program.trace(jax().lax.optimization_barrier(given)))
        return self._chosen(found)

    def run(self, arguments: Sequence[object]) -> Sequence[Traced]:
        if self._joined is not None:
            return called(self._joined.of(), self.name, np.True_, *arguments, is_wide=self.is_wide)
        found: list[Sequence[Traced]] = []
        for one in self._programs:
            given = [arguments[t.position] if t.step is None else found[t.step][t.position] for t in one.argument]
            if is_stopped():
                raise CancelledError
            found.append(one.program.run(given) if one.slices == 1 else _sliced(one, given))
            _wait_for(found[-1])  # what has been dispatched cannot be cancelled, and reads the caller's memory
        return self._chosen(found)

    def run_loop(
        self, lanes: int, shared: Sequence[bool], clients: int, arguments: Sequence[object]
    ) -> Sequence[Traced]:
        found: list[Sequence[Traced]] = []
        for one in self._programs:
            given = [arguments[t.position] if t.step is None else found[t.step][t.position] for t in one.argument]
            own = [t.step is None and shared[t.position] for t in one.argument]
            found.append(one.program.run_loop(lanes, own, clients, given))
            _wait_for(found[-1])
        return self._chosen(found)

    def _in_branches(self, is_true: Traced, *arguments: Traced) -> Sequence[Traced]:
        found: list[Sequence[Traced]] = []
        for one in self._programs:
            given = [arguments[t.position] if t.step is None else found[t.step][t.position] for t in one.argument]
            found.append(_in_branch(is_true, one.program, given))
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
