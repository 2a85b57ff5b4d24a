"""Runs a program once and remembers how long it took, which tells later runs whether a thread is worth its price."""

import time
from collections.abc import Sequence

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import run_once
from fedstack.computations.plan.program import Program
from fedstack.executors.concurrency.progress import name_of
from fedstack.transport.wire.frames import Work


class _OneRun:
    """One run of a program, as those see it who look at what runs."""

    def __init__(self, program: Program, begin: float) -> None:
        self._program = program
        self._begin = begin

    def work(self) -> list[Work]:
        return [Work(0, 0, name_of(self._program), time.perf_counter() - self._begin)]


def timed_run(program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
    """Runs a linked program once and notes the seconds in it."""
    begin = time.perf_counter()
    progress = current_scope().progress
    run = None if progress is None else _OneRun(program, begin)
    if progress is not None and run is not None:
        progress.watch(run)  # which lets go of it when this has returned
    results = run_once(program, inputs)
    program.seconds_per_call = time.perf_counter() - begin
    return results
