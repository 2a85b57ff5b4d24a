"""Measures programs, so that later runs know whether threads pay and how many clients fit a block."""

import sys
import time
from collections.abc import Sequence

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import run_once
from fedstack.computations.plan.program import Program
from fedstack.executors.concurrency.progress import name_of
from fedstack.foundations.caches import made_once
from fedstack.transport.wire.frames import RunningClients

# The most runs for which no second thread is tried.
_MOST_RUNS_WITHOUT_HELPERS = 64


@attrs.define(eq=False)
class Measurements:
    """The speed of a linked program. Several threads write; an update that gets lost is measured again.

    Attributes:
      seconds_per_call: The time of one run on one thread when last measured; `None` before the first.
      result_bytes: The size of the arrays that one client yields, when last measured.
      runs: How often the program ran for many clients with threads available.
      runs_without_helpers: The number of further runs for which no second thread is tried, because it did not pay.
      misses: How often in a row it did not pay.
    """

    seconds_per_call: float | None = None
    result_bytes: int = 0
    runs: int = 0
    runs_without_helpers: int = 0
    misses: int = 0

    def note_helper(self, pays: bool) -> None:
        """Records whether a second thread pays; after each miss in a row the next try comes later."""
        self.misses = 0 if pays else self.misses + 1
        self.runs_without_helpers = 0 if pays else min(1 << self.misses, _MOST_RUNS_WITHOUT_HELPERS)


@made_once
def measurements_of(program: Program) -> Measurements:
    """Returns the measurements of a linked program, one object for all executors that run it."""
    return Measurements()


def preemptions() -> int:
    """Returns how often the system preempted this thread; 0 where it does not say."""
    if sys.platform != "linux":
        return 0
    import resource  # not everywhere

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class _OneRun:
    """One run of a program, as progress reports it."""

    def __init__(self, program: Program, begin: float) -> None:
        self._program = program
        self._begin = begin

    def work(self) -> list[RunningClients]:
        return [RunningClients(0, 0, name_of(self._program), time.perf_counter() - self._begin)]


def timed_run(program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
    """Runs a linked program once and measures it."""
    begin = time.perf_counter()
    progress = current_scope().progress
    run = None if progress is None else _OneRun(program, begin)
    if progress is not None and run is not None:
        progress.watch(run)  # held weakly: it ends with this function
    results = run_once(program, inputs)
    measurements_of(program).seconds_per_call = time.perf_counter() - begin
    return results
