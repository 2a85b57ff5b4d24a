"""Counts what the leaf runtimes of this process compile, for events and for the status of servers."""

import threading

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.observe.events import LeafCompiled
from fedstack.observe.observers import observers


class Compilations:
    """The compilations so far.

    Attributes:
      count: The number of functions that were compiled, once for each size of their arguments.
      from_cache: How many of them were found in a cache on disk.
      seconds: How long they took, in seconds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.from_cache = 0
        self.seconds = 0.0
        self._running: dict[int, str] = {}
        self._now: dict[int, str] = {}
        self._lock = threading.Lock()
        renew_after_fork(self)

    def enter(self, name: str) -> None:
        """Records that this thread runs a function, which is compiled first if need be. Call `leave` later."""
        self._running[threading.get_ident()] = name

    def leave(self) -> None:
        """Records that the function of this thread has ended."""
        thread = threading.get_ident()
        self._running.pop(thread, None)
        self._now.pop(thread, None)

    @property
    def function(self) -> str:
        """The function that this thread runs; empty if there is none."""
        return self._running.get(threading.get_ident(), "")

    @property
    def running(self) -> int:
        """The number of threads that run functions."""
        return len(self._running)

    def begin(self) -> None:
        """Records that this thread compiles its function. Call `end` or `leave` later."""
        self._now[threading.get_ident()] = self.function

    def end(self) -> None:
        """Records that this thread compiles nothing any more."""
        self._now.pop(threading.get_ident(), None)

    def shown(self, function: str, thread: int) -> str:
        """Returns how a display shows the function that a thread runs, or for whose compilation it waits."""
        name = self._running.get(thread)
        return f"{name} (compiling)" if name is not None and name in list(self._now.values()) else function

    def note(self, name: str, seconds: float, *, from_cache: bool) -> None:
        """Counts a compilation.

        Args:
          name: The name of the function.
          seconds: How long it took, in seconds.
          from_cache: Whether the compiled function was found in a cache on disk.
        """
        with self._lock:
            self.count += 1
            self.from_cache += from_cache
            self.seconds += seconds
        if observers.present:
            observers.tell(LeafCompiled(**current_scope().span.ids, name=name, seconds=seconds, from_cache=from_cache))

    def renew(self) -> None:
        self._running, self._now = {}, {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Compilations {self.count}, {self.from_cache} of them from a cache, {self.seconds:.3f} s>"


compilations = Compilations()
