"""Runs compiled functions of arrays once, or in a compiled loop over several clients."""

import abc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.xla.compiled_code import CodeOfSizes, called
from fedstack.computations.leaves.xla.jax_api import FlatFunction, Traced, jax, results_of, shaped
from fedstack.errors import InvalidValueError


class ArrayProgram(abc.ABC):
    """A function of arrays that is ready to run.

    Attributes:
      name: The name of the function in messages.
      is_wide: Whether any of its arrays has numbers of more than 32 bits.
      can_loop: Whether a compiled loop around the function is as fast as single calls.
      is_short: Whether it takes a few milliseconds to compile.
    """

    name: str
    is_wide: bool
    can_loop: bool
    is_short: bool = False

    @abc.abstractmethod
    def trace(self, arguments: Sequence[Traced]) -> Sequence[Traced]:
        """Calls the function as a part of another one."""

    def __call__(self, arguments: Sequence[object]) -> list[NDArray[Any]]:
        """Runs the function, and returns its results as read-only arrays, which never change."""
        return [np.asarray(one) for one in self.run(arguments)]

    def loop(self, lanes: int, shared: Sequence[bool], clients: int, arguments: Sequence[object]) -> list[NDArray[Any]]:
        """Runs the function for several clients, one after the other. No client depends on the others.

        Args:
          lanes: The maximum number of clients, for which memory is allocated.
          shared: For each argument, whether it is the same for all clients. If not, its first axis is that of clients.
          clients: The number of clients.
          arguments: The arguments.

        Returns:
          The results, with the clients along a first axis. Rows beyond the clients are zeros.
        """
        return [np.asarray(one) for one in self.run_loop(lanes, shared, clients, arguments)]

    @abc.abstractmethod
    def run(self, arguments: Sequence[object]) -> Sequence[Traced]:
        """Runs the function like a call, and returns its results as arrays of JAX."""

    @abc.abstractmethod
    def run_loop(
        self, lanes: int, shared: Sequence[bool], clients: int, arguments: Sequence[object]
    ) -> Sequence[Traced]:
        """Runs the function like `loop`, and returns its results as arrays of JAX."""


class XlaProgram(ArrayProgram):
    """A function of arrays that is compiled when it runs first.

    Args:
      name: The name of the function in messages.
      function: The function of tracers.
      arguments: Descriptions of its arguments.
      results: Descriptions of its results.
      can_loop: Whether a compiled loop around the function is as fast as single calls.
    """

    def __init__(
        self,
        name: str,
        function: FlatFunction,
        arguments: Sequence[Traced],
        results: Sequence[Traced],
        *,
        can_loop: bool,
    ) -> None:
        self.name = name
        self.function = function
        self.arguments = arguments
        self.results = results
        self.can_loop = can_loop
        self.is_wide = any(np.dtype(one.dtype).itemsize > 4 for one in (*arguments, *results))
        self._is_open = any(not isinstance(size, int) for one in arguments for size in one.shape)
        self._run = CodeOfSizes(function, name)
        self._loop = CodeOfSizes(self._looped, name, static_argnums=(0, 1))

    def trace(self, arguments: Sequence[Traced]) -> Sequence[Traced]:
        return self.function(*arguments)

    def run(self, arguments: Sequence[object]) -> Sequence[Traced]:
        return called(self._run.of(*self._sizes(arguments)), self.name, *arguments, is_wide=self.is_wide)

    def run_loop(
        self, lanes: int, shared: Sequence[bool], clients: int, arguments: Sequence[object]
    ) -> Sequence[Traced]:
        given = lanes, tuple(shared), np.int32(clients), *arguments
        return called(self._loop.of(*shared, *self._sizes(arguments)), self.name, *given, is_wide=self.is_wide)

    def _sizes(self, arguments: Sequence[object]) -> Iterator[object]:
        return (np.shape(cast(Any, one))[:2] for one in arguments) if self._is_open else iter(())

    def _looped(self, lanes: int, shared: tuple[bool, ...], clients: Traced, *arguments: Traced) -> Sequence[Traced]:
        lax, numpy = jax().lax, jax().numpy

        def client(lane: Traced, rows: Sequence[Traced]) -> Sequence[Traced]:
            own = [
                argument if is_shared else lax.dynamic_index_in_dim(argument, lane, keepdims=False)
                for argument, is_shared in zip(arguments, shared)
            ]
            # What XLA moves out of the loop, it would compile in another way than for arguments that are not shared.
            lane, own = lax.optimization_barrier((lane, own))
            found = zip(rows, self.function(*own))
            return [lax.dynamic_update_index_in_dim(into, one, lane, 0) for into, one in found]

        results = self.results
        if self._is_open:
            shapes = [one.shape if is_shared else one.shape[1:] for one, is_shared in zip(arguments, shared)]
            own = [shaped(shape, argument.dtype) for shape, argument in zip(shapes, arguments)]
            results = results_of(self.function, own)
        empty = [numpy.zeros((lanes, *one.shape), one.dtype) for one in results]
        return lax.fori_loop(0, clients, client, empty)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}>"


class ProgramOfRows(ArrayProgram):
    """A function of arrays some of which have an unknown number of rows: the same for all of them.

    Args:
      program: The function for at least one row.
      empty: The function for none; `None` if it has no result then.
      rows: The indices of the arguments with an unknown number of rows.
    """

    def __init__(self, program: ArrayProgram, empty: ArrayProgram | None, rows: Sequence[int]) -> None:
        self.name = program.name
        self.is_wide = program.is_wide
        self.can_loop = program.can_loop
        self._program = program
        self._empty = empty
        self._rows = rows

    def trace(self, arguments: Sequence[Traced]) -> Sequence[Traced]:
        return self._of(np.shape(arguments[index])[0] for index in self._rows).trace(arguments)

    def run(self, arguments: Sequence[object]) -> Sequence[Traced]:
        return self._of(np.shape(cast(Any, arguments[index]))[0] for index in self._rows).run(arguments)

    def run_loop(
        self, lanes: int, shared: Sequence[bool], clients: int, arguments: Sequence[object]
    ) -> Sequence[Traced]:
        shapes = [np.shape(cast(Any, arguments[index])) for index in self._rows]
        rows = (shape[0 if shared[index] else 1] for shape, index in zip(shapes, self._rows))
        return self._of(rows).run_loop(lanes, shared, clients, arguments)

    def _of(self, rows: Iterable[int]) -> ArrayProgram:
        """Returns the function for numbers of rows, which have to be equal.

        Raises:
          InvalidValueError: If they are not, or there are none and the function has no result then.
        """
        found = set(rows)
        if len(found) > 1:
            raise InvalidValueError(
                f"Expected arrays with the same number of rows as arguments of {self.name!r}, found {sorted(found)}; "
                "pass arrays of one size, or declare the sizes of those that differ"
            )
        if 0 not in found:
            return self._program
        if self._empty is None:
            raise InvalidValueError(
                f"Expected at least one row in the arguments of {self.name!r}, found none; leave out clients without "
                "data, or let the function return a result for arrays without rows"
            )
        return self._empty
