"""Limits BLAS to one thread while functions of clients run.

A product of matrices may have other bits on two threads than on one, so that a client's result would depend on how many
other clients run at the same time. And two leaf threads whose products each start two BLAS threads are slower than a
single leaf thread (176 ms versus 129 ms in a measurement).
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

from fedstack.foundations.after_fork import renew_after_fork

_P = ParamSpec("_P")
_R = TypeVar("_R")
# What sets the number of threads of a library, and a number.
_Setting: TypeAlias = tuple[Callable[[int], object], int]


class _BlasLimit:
    """The limit on this process's BLAS threads, and the users of this limit."""

    def __init__(self) -> None:
        self._libraries: list[tuple[Any, Callable[[int], object]]] = []
        self._modules = 0
        self._before: list[_Setting] = []
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Removes the users in a forked child, where their threads do not exist.

        The BLAS setting is restored after the next use of the limit. Restoring it immediately could start BLAS threads,
        although most children only run another program.
        """
        self._lock = threading.Lock()
        self._users = 0

    def add(self) -> list[_Setting]:
        """Sets the limit, and returns what to restore for this thread."""
        own: list[_Setting] = []
        with self._lock:
            self._users += 1
            for library, set_threads in self._found():
                threads = library.get_num_threads()
                if threads is not None and threads > 1:
                    # With OpenMP, each thread has a setting of its own.
                    is_own = getattr(library, "threading_layer", "") == "openmp"
                    (own if is_own else self._before).append((set_threads, threads))
                    set_threads(1)
        return own

    def remove(self, own: list[_Setting]) -> None:
        """Restores what `add` returned and, after the last user, what was set for the process."""
        with self._lock:
            self._users -= 1
            before = [] if self._users else self._before
            for set_threads, threads in [*own, *before]:
                set_threads(threads)
            before.clear()

    def _found(self) -> list[tuple[Any, Callable[[int], object]]]:
        """Returns the BLAS libraries of this process, each with its setter. A library comes with an import."""
        if len(sys.modules) != self._modules:
            import threadpoolctl  # imported only when functions run, because it inspects every loaded library

            found: Any = threadpoolctl.ThreadpoolController().select(user_api="blas")
            self._libraries = [(library, _setter(library)) for library in found.lib_controllers]
            self._modules = len(sys.modules)
        return self._libraries


def _setter(library: Any) -> Callable[[int], object]:
    """Returns what sets the number of threads of a library.

    threadpoolctl ignores all threads but the first one that sets it, because they could contradict each other, and asks
    who that is for longer than it takes to set the number. Here the lock and the number of users prevent that.
    """
    return getattr(library, "_real_set_num_threads", library.set_num_threads)  # older versions ask nobody


_limit = _BlasLimit()


class OneBlasThread:
    """A context manager that limits BLAS to one thread; the setting is restored once no thread is in such a block."""

    # A class, because a generator-based context manager would take four times as long, and each phase enters a block.
    __slots__ = ("_own",)

    def __enter__(self) -> None:
        self._own = _limit.add()

    def __exit__(self, *error: object) -> None:
        _limit.remove(self._own)


def with_one_blas_thread(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns a function that calls another one with one BLAS thread."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with OneBlasThread():
            return function(*args, **kwargs)

    return call
