"""Compiles functions of arrays, and runs them once or in a compiled loop over several clients."""

import abc
import contextlib
import functools
import itertools
import logging
import threading
from asyncio import CancelledError
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.bound_operation import is_stopped
from fedstack.computations.leaves.compilations import compilations
from fedstack.computations.leaves.xla.argument_memory import call_memory
from fedstack.computations.leaves.xla.jax_api import (
    FlatFunction,
    Traced,
    check_process,
    is_tracing,
    jax,
    one_thread_device,
    results_of,
    shaped,
    with_wide_types,
    without_frames,
)
from fedstack.errors import InvalidComputationError, InvalidValueError
from fedstack.foundations.deadline import Deadline

_logger = logging.getLogger(__name__)
# For how many sizes of its arguments a program keeps compiled code.
_MOST_SIZES = 64
# What XLA's error says if there is not enough memory for a function.
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_POLL_SECONDS = 0.001
# An operation uses one thread, because several clients run at the same time.
_OPTIONS = {"xla_cpu_multi_thread_eigen": False}


class ArrayProgram(abc.ABC):
    """A function of arrays that is ready to run.

    Attributes:
      name: The name of the function in messages.
      is_wide: Whether any of its arrays has numbers of more than 32 bits.
      can_loop: Whether a compiled loop around the function is as fast as single calls.
    """

    name: str
    is_wide: bool
    can_loop: bool

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


def compiled(function: FlatFunction, **options: Any) -> Any:
    """Returns a function of JAX that XLA compiles when it runs first."""
    device = one_thread_device()
    if device is not None:
        options["in_shardings"] = options["out_shardings"] = jax().sharding.SingleDeviceSharding(device)
        options["compiler_options"] = _OPTIONS
    return jax().jit(function, **options)


def called(function: FlatFunction, name: str, *arguments: object, is_wide: bool) -> Sequence[Traced]:
    """Calls a function that is compiled, or compiles it now.

    Args:
      function: The function.
      name: Its name in messages.
      *arguments: Its arguments.
      is_wide: Whether any of its arrays has numbers of more than 32 bits.

    Raises:
      InvalidComputationError: If JAX traces the caller.
      MemoryError: If there is not enough memory, even while no other function runs.
    """
    check_process()
    _shortage.wait()
    try:
        return _called(function, name, arguments, is_wide)
    except Exception as error:
        if _OUT_OF_MEMORY not in str(error):
            raise
    with _shortage.alone():
        try:
            return _called(function, name, arguments, is_wide)
        except Exception as error:
            if _OUT_OF_MEMORY not in str(error):
                raise
            found = str(error).partition(_OUT_OF_MEMORY)[2]
            raise MemoryError(
                f"{found.lstrip(': ')} Let clients use smaller batches, or run fewer processes on this machine"
            ) from error


def _called(function: FlatFunction, name: str, arguments: Sequence[object], is_wide: bool) -> Sequence[Traced]:
    compilations.enter(name)
    try:
        found = call_memory.aligned(arguments)
        if not is_wide:
            return function(*found)
        with with_wide_types():
            return function(*found)
    except Exception as error:
        without_frames(error)
        if not is_tracing(()):
            raise
        raise InvalidComputationError(
            f"Expected no other computations in a function that JAX traces, found one that calls {name!r}; call it "
            "before, and pass its result as an argument"
        ) from error
    finally:
        compilations.leave()


class _Shortage:
    """Lets a function that ran out of memory run again while no other one runs.

    Fewer functions run at once then, but each for the same group of clients as before, so that its results keep their
    bits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Waits while a function runs alone."""
        if self._lock.locked():
            with self._lock:
                pass

    @contextlib.contextmanager
    def alone(self) -> Generator[None, None, None]:
        """Waits until no function runs, and lets none begin during the block.

        Raises:
          CancelledError: If nobody waits for the function any more.
        """
        with self._lock:
            for _ in Deadline().attempts_blocking(itertools.repeat(_POLL_SECONDS)):
                if is_stopped():
                    raise CancelledError
                if not compilations.running:
                    break
            yield


_shortage = _Shortage()


class CodeOfSizes:
    """A function of JAX, whose compiled code is kept for some sizes of its arguments: each takes a megabyte or two.

    Args:
      function: The function.
      name: Its name in messages.
      **options: The options of `jax.jit`.
    """

    def __init__(self, function: FlatFunction, name: str, **options: Any) -> None:
        self._function = function
        self._name = name
        self._options = options
        self._code: dict[tuple[object, ...], Any] = {}
        self._is_told = False

    def of(self, *sizes: object) -> Any:
        """Returns the function, to be called for arguments of these sizes."""
        code = self._code.get(sizes)
        if code is None:
            self._make_room()
            code = self._code.setdefault(sizes, compiled(self._of_its_own(), **self._options))  # on any thread
        return code

    def _of_its_own(self) -> FlatFunction:
        """Returns the function as another object: JAX keeps what it knows of an object as long as that exists."""

        @functools.wraps(self._function)
        def function(*arguments: Any) -> Any:
            return self._function(*arguments)

        return function

    def _make_room(self) -> None:
        if len(self._code) < _MOST_SIZES:
            return
        if not self._is_told:
            self._is_told = True
            _logger.warning(
                "Expected %r to run with at most %d sizes of its arguments, found more; the code of the others is "
                "compiled again each time. Pad arrays to fewer sizes, or declare a sequence, which is compiled once "
                "for each power of two",
                self._name,
                _MOST_SIZES,
            )
        # Rounds run the same sizes in the same order. So the oldest ones are those that are needed next.
        self._code.popitem()[1].clear_cache()


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
