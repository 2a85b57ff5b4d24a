"""Schedules calls over two workers, beside gRPC that sends as many plain messages there and back."""

import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np

import fedstack
from benchmarks.echo import EchoServer, many_times
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.service.coordinator import ClusterCoordinator, as_completed, current_worker_index
from fedstack.service.pool.worker_pool import WorkerPool, local_worker_pool
from fedstack.transport.peers.io_loop import io_loop

# What two workers have in flight at the same time.
_IN_FLIGHT = 16
_TIMES = 1.3
_LONGEST_GAP = 0.3
_DROPPED_SECONDS = 5.0
_MOST_LIVE = 100


@fedstack.python_computation([], np.int32)
def nothing() -> int:
    """Does nothing."""
    return 1


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures calls that do nothing, unequal workers, one that is killed, and results that are dropped."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedstack-")))
        echo = stack.enter_context(EchoServer(f"unix:{folder / 'echo'}"))
        pool = stack.enter_context(local_worker_pool(2))
        with ClusterCoordinator(pool) as coordinator:
            yield from _measure_calls(echo, coordinator, effort)
            yield _measure_drops(pool, coordinator, effort.pick(100, 10_000, 10_000))
    with local_worker_pool(2) as pool:
        yield _measure_unequal(pool, effort.pick(33, 132, 132))
    with local_worker_pool(2) as pool:
        yield _measure_kill(pool, effort.pick(30, 300, 300))


def _measure_calls(echo: EchoServer, coordinator: ClusterCoordinator, effort: Effort) -> Iterator[Measurement]:
    calls = effort.pick(2 * _IN_FLIGHT, 1000, 1000)
    echoes = many_times(lambda: echo.unary(b"12345678"), calls, _IN_FLIGHT)
    floor = Floor(lambda: io_loop.run_sync(echoes()), "", _TIMES, f"≤ {_TIMES:.3g} × as many echoes")

    def schedule() -> None:
        for _ in range(calls):
            coordinator.schedule(nothing)
        coordinator.join()

    schedule()
    yield from compare_with_all(f"{calls} calls that do nothing, on 2 workers", [floor], schedule, effort)


def _measure_drops(pool: WorkerPool, coordinator: ClusterCoordinator, calls: int) -> Measurement:
    stubs = make_stubs(pool, None)

    def live_values() -> int:
        return sum(io_loop.run_sync(stub.get_status()).values for stub in stubs)

    for _ in range(calls):
        coordinator.schedule(nothing)
    coordinator.join()
    begun = time.perf_counter()
    while live_values() >= _MOST_LIVE and time.perf_counter() < begun + 2 * _DROPPED_SECONDS:
        time.sleep(0.01)
    seconds = time.perf_counter() - begun
    for stub in stubs:
        io_loop.run_sync(stub.close())
    return Measurement(f"{calls} results dropped, until < 100 live", seconds, None, _DROPPED_SECONDS, "≤ 5 s")


def _measure_unequal(pool: WorkerPool, calls: int) -> Measurement:
    def work() -> int:
        time.sleep(0.5 if current_worker_index() else 0.05)
        return current_worker_index()

    seconds: list[float] = []
    with ClusterCoordinator(pool) as coordinator:
        coordinator.fetch([coordinator.schedule(work) for _ in range(_IN_FLIGHT)])
        for _ in range(3):
            begun = time.perf_counter()
            for _ in range(calls):
                coordinator.schedule(work)
            coordinator.join()
            seconds.append(time.perf_counter() - begun)
    ideal = calls / (8 / 0.05 + 8 / 0.5)
    name = f"{calls} calls, 8 at a time, on 2 workers of which one is ten times slower"
    return Measurement(name, statistics.median(seconds), ideal, 1.3 * ideal, "≤ 1.3 × the ideal")


def _square() -> Callable[[int], int]:
    def square(number: int) -> int:
        time.sleep(0.02)
        return number * number

    return square


def _measure_kill(pool: WorkerPool, calls: int) -> Measurement:
    square, gap = _square(), 0.0
    with ClusterCoordinator(pool) as coordinator:
        coordinator.fetch([coordinator.schedule(square, (1,)) for _ in range(_IN_FLIGHT)])
        values = [coordinator.schedule(square, (number,)) for number in range(calls)]
        last = time.perf_counter()
        for count, _ in enumerate(as_completed(values), 1):
            now = time.perf_counter()
            gap, last = max(gap, now - last), now
            if count == calls // 3:
                os.kill(pool.pids[0], signal.SIGKILL)
        found = cast("list[int]", coordinator.fetch(values))
    assert [int(value) for value in found] == [number * number for number in range(calls)]
    name = f"longest gap in {calls} calls of 20 ms, a worker killed at a third"
    return Measurement(name, gap, None, _LONGEST_GAP, "≤ 0.3 s")
