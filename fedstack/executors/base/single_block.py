"""Runs a program for clients that make up a single block, on the caller's thread.

The bookkeeping of `ClientBlocks` would take longer than a few short clients themselves.
"""

import time
from collections.abc import Sequence

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import run_columns
from fedstack.computations.plan.program import Program
from fedstack.computations.values.columns import Column
from fedstack.computations.values.shared_columns import bytes_per_client
from fedstack.executors.base.block import BLOCK_SECONDS
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.concurrency.measurements import measurements_of
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.foundations.blas_threads import OneBlasThread


def is_single_block(program: Program, clients: range) -> bool:
    """Returns whether all clients are known to take no longer than one block, and nobody counts or bounds them."""
    measured, scope = measurements_of(program), current_scope()
    known = measured.seconds_per_call
    return (
        known is not None
        and known * len(clients) <= BLOCK_SECONDS
        and not measured.yields_large
        and scope.progress is None
        and scope.of(Tolerance) is None
    )


def run_single_block(program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
    """Runs a program for all clients at once, and measures it; see `ClientBlocks`, also for the arguments."""
    first, stop = clients.start, sink.claim(clients.stop)
    size, measured = stop - first, measurements_of(program)
    if size <= 0:
        return
    begin = time.perf_counter()
    with OneBlasThread():  # folds may call functions, too
        columns = inputs if size == len(clients) else [column.slice(0, size) for column in inputs]
        results = run_columns(program, [column.here() for column in columns], first, size)
        measured.result_bytes = sum(map(bytes_per_client, results))
        sink.feed(first, results)
    seconds = time.perf_counter() - begin
    measured.seconds_per_call = seconds / size
    sink.took(range(first, stop), seconds)
    sink.reached(stop)
