"""Compiles functions of arrays for this process's device, calls them, and frees code that is old."""

import contextlib
import functools
import itertools
import logging
import threading
import weakref
from asyncio import CancelledError
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

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
    with_wide_types,
    without_frames,
)
from fedstack.errors import InvalidComputationError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline

_logger = logging.getLogger(__name__)
# For how many sizes of its arguments a program keeps compiled code.
_MOST_SIZES = 64
# For how many functions, and sizes of their arguments, this process keeps compiled code: about 1.5 MB each.
_MOST_CODE = 256
# What XLA's error says if there is not enough memory for a function.
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_POLL_SECONDS = 0.001
# An operation uses one thread, because several clients run at the same time.
_OPTIONS = {"xla_cpu_multi_thread_eigen": False}


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
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replaces the lock. Called in a forked child."""
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
            _all_code.add(self, sizes)
        return code

    def drop(self, sizes: tuple[object, ...]) -> None:
        """Frees the code for some sizes. It is compiled again when it is needed."""
        code = self._code.pop(sizes, None)
        if code is not None:
            code.clear_cache()

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
        sizes, code = self._code.popitem()
        code.clear_cache()
        _all_code.remove(self, sizes)


class _AllCode:
    """The code of all functions of this process, of which the oldest is freed if there is much."""

    def __init__(self) -> None:
        self._kept: deque[tuple[weakref.ref[CodeOfSizes], tuple[object, ...]]] = deque()

    def add(self, owner: CodeOfSizes, sizes: tuple[object, ...]) -> None:
        """Adds code that has been made. What is still needed of the oldest is compiled again, and is then new."""
        self._kept.append((weakref.ref(owner), sizes))
        while len(self._kept) > _MOST_CODE:
            oldest, old_sizes = self._kept.popleft()
            if (found := oldest()) is not None:
                found.drop(old_sizes)

    def remove(self, owner: CodeOfSizes, sizes: tuple[object, ...]) -> None:
        """Removes code that its owner has freed."""
        with contextlib.suppress(ValueError):
            self._kept.remove((weakref.ref(owner), sizes))


_all_code = _AllCode()
