"""Runs a program once and remembers how long it took, which tells later runs whether a thread is worth its price."""

import time
from collections.abc import Sequence

from fedstack.computations.interpreter import run_once
from fedstack.computations.program import Program


def timed_run(program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
    """Runs a linked program once and notes the seconds in it."""
    begin = time.perf_counter()
    results = run_once(program, inputs)
    program.seconds_per_call = time.perf_counter() - begin
    return results
