"""Measures programs, so that later runs can decide whether to use helper threads and how large to make blocks."""

import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence

import attrs

from fedstack.computations.leaves.compilations import compilations
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import run_once
from fedstack.computations.plan.program import Program
from fedstack.executors.concurrency.observed_phases import name_of
from fedstack.foundations.caches import made_once
from fedstack.transport.wire.frames import RunningClients

# The maximum number of consecutive runs that do not try a second thread.
_MOST_RUNS_WITHOUT_HELPERS = 64
# A helper is of use if it reduces the time per client to less than this fraction of the time on one thread, or if all
# workers together compute on more cores than this. Threads that wait for the interpreter lock compute on 0.9 to 1.3.
_MIN_GAIN = 0.9
_MIN_CORES = 1.4
_CLIENTS_TO_JUDGE = 8
_SECONDS_TO_JUDGE = 0.005
# Results above this size are passed to the folds client by client, because they would be evicted from the cache before
# a block is done.
_LARGE_BYTES = 64 * 1024


@attrs.define(eq=False)
class Measurements:
    """The measured speed of a linked program.

    Several threads may update the measurements without a lock; an update that is lost is measured again.

    Attributes:
      seconds_per_call: The last measured time of one run on one thread; `None` before the first measurement.
      result_bytes: The last measured size of the arrays that one client yields.
      runs: The number of runs for many clients in which threads were available.
      runs_without_helpers: The number of upcoming runs that do not try a second thread, because it was not worthwhile.
      misses: The number of consecutive tries in which a second thread was not worthwhile.
      waits: Whether the clients have been seen to wait, and not to compute since.
    """

    seconds_per_call: float | None = None
    result_bytes: int = 0
    runs: int = 0
    runs_without_helpers: int = 0
    misses: int = 0
    waits: bool = False

    @property
    def yields_large(self) -> bool:
        """Whether a client yields so much that its results are folded before the next client runs."""
        return self.result_bytes > _LARGE_BYTES

    def note_helper(self, pays: bool) -> None:
        """Records whether a second thread is worthwhile. Each consecutive miss delays the next try further."""
        self.misses = 0 if pays else self.misses + 1
        self.runs_without_helpers = 0 if pays else min(1 << self.misses, _MOST_RUNS_WITHOUT_HELPERS)


@attrs.define
class HelperTrial:
    """What a helper has done so far.

    Attributes:
      clients: The number of clients that it ran.
      seconds: How long they took, in seconds.
      cpu: For how long of this time it computed, in seconds.
    """

    clients: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, clients: int, seconds: float, cpu: float) -> None:
        """Adds a block of clients."""
        self.clients += clients
        self.seconds += seconds
        self.cpu += cpu

    def is_of_use(self, alone: float, workers: int) -> bool | None:
        """Returns whether the helper speeds up the work; `None` if this is not known yet.

        Args:
          alone: How long a client takes on one thread, in seconds. It may have been measured at another time, when the
            machine was slower or faster.
          workers: The number of threads that run clients.
        """
        if self.clients < _CLIENTS_TO_JUDGE or self.seconds < _SECONDS_TO_JUDGE:
            return None
        gains = self.seconds < _MIN_GAIN * alone * workers * self.clients
        return gains or self.cpu * workers > _MIN_CORES * self.seconds


@made_once
def measurements_of(program: Program) -> Measurements:
    """Returns the measurements of a linked program, which all executors that run the program share."""
    return Measurements()


def preemptions() -> int:
    """Returns the number of times that the system has preempted this thread; 0 if the system does not report it."""
    if sys.platform != "linux":
        return 0
    import resource  # not available on all platforms

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class CoreDemand:
    """Observes how much of the cores this process uses, or would use if other programs left them to it.

    Args:
      threads: The native ids of threads that may wait for a core. If other programs have the cores, one of them waits
        for a core, and the others wait for the interpreter lock, which it holds.
    """

    def __init__(self, threads: Iterable[int]) -> None:
        self._seconds = {thread: _core_seconds(thread) for thread in threads}
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def cores(self) -> float:
        """Returns the demand since this object was created, in cores; infinite if a thread wants a core now."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        if any(map(_is_runnable, self._seconds)):
            return math.inf
        wanted = sum(max(0.0, _core_seconds(thread) - before) for thread, before in self._seconds.items())
        return max(cpu, wanted) / wall


def _is_runnable(thread: int) -> bool:
    """Returns whether a thread runs or waits for a core only; false if it is not known."""
    return _read(thread, "stat").rpartition(b") ")[2].startswith(b"R")  # the name in parentheses may contain anything


def _core_seconds(thread: int) -> float:
    """Returns for how long a thread ran or waited for a core, up to its last sleep; 0 if it is not known."""
    ran, queued, *_ = _read(thread, "schedstat").split() or (0, 0)
    return (int(ran) + int(queued)) / 1e9


def _read(thread: int, name: str) -> bytes:
    """Reads what the system says about a thread; nothing if it does not say it.

    A file object would release the interpreter lock twice as often, and wait for it each time.
    """
    try:
        file = os.open(f"/proc/self/task/{thread}/{name}", os.O_RDONLY)
        try:
            return os.read(file, 4096)
        finally:
            os.close(file)
    except OSError:
        return b""


class _OneRun:
    """A single run of a program, in the form in which it appears in an invocation's progress."""

    def __init__(self, program: Program, begin: float) -> None:
        self._program = program
        self._begin = begin
        self._thread = threading.get_ident()

    def work(self) -> list[RunningClients]:
        function = compilations.shown(name_of(self._program), self._thread)
        return [RunningClients(0, 0, function, time.perf_counter() - self._begin)]


def timed_run(program: Program, inputs: Sequence[object], stops: Sequence[object]) -> tuple[object, ...]:
    """Runs a linked program once, records the time, and returns the results; see `run_once`."""
    begin = time.perf_counter()
    progress = current_scope().progress
    run = None if progress is None else _OneRun(program, begin)
    if progress is not None and run is not None:
        progress.watch(run)  # kept as a weak reference, so the entry ends with this function
    results = run_once(program, inputs, stops)
    measurements_of(program).seconds_per_call = time.perf_counter() - begin
    return results
