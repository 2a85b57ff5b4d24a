"""Sends values to a worker and fetches them again, beside gRPC that does the same with plain bytes."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypedDict, cast

import federated_language as fl
import numpy as np
from numpy.typing import NDArray

from benchmarks.echo import EchoServer, many_times
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from benchmarks.memory import MEGABYTE, in_fresh_process, peak_resident_bytes, resident_bytes, warm_memory
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.service.pool.worker_pool import WorkerPool, local_worker_pool
from fedstack.transport.peers.io_loop import io_loop

Array = NDArray[np.float32]
# Sizes up to a megabyte, one at a time; those that are measured with so many in flight, too.
_SMALL_BYTES = 1 << 10, 4 << 10, 64 << 10, 1 << 20
_MANY_BYTES = 1 << 10, 64 << 10
_IN_FLIGHT = 32
# How many echoes a value may take there and back; in flight, it has half of their rate.
_SMALL_TIMES = 2.0
_MOST_MEMORY = 16 * MEGABYTE
_SETTLING_SECONDS = 20.0
# How many echoes of one message, and of a chunked stream, a value of so many megabytes may take.
_TIMES = {16: (0.7, 1.3), 128: (0.35, 1.3), 512: (0.35, 1.3)}


class _Peaks(TypedDict):
    client: int
    worker: int


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures round trips of small and of large values, and the memory that a large one takes."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedstack-")))
        echo = stack.enter_context(EchoServer(f"unix:{folder / 'echo'}"))
        pool = stack.enter_context(local_worker_pool(1))
        remote = stack.enter_context(Remote(pool))
        for size in _SMALL_BYTES:
            yield from _measure_small(echo, remote, effort, size, 1)
        for size in _MANY_BYTES:
            yield from _measure_small(echo, remote, effort, size, _IN_FLIGHT)
        for megabytes in effort.pick([1], [16, 128], [16, 128, 512]):
            yield from _measure_large(echo, remote, effort, megabytes)
        # The tests only look whether it works, and have no time for more processes.
        peaks = None if effort.size else _peaks_with(pool, remote, 1)
    megabytes = effort.pick(1, 128, 512)
    peaks = peaks or cast(_Peaks, in_fresh_process(__name__, "peaks_of_round_trip", megabytes))
    for side, peak, beyond in (
        ("client", peaks["client"], "argument and result"),
        ("worker", peaks["worker"], "the value"),
    ):
        name = f"round trip of {megabytes} MB, {side}'s memory beyond {beyond}"
        yield Measurement(name, peak, None, _MOST_MEMORY, "≤ 16 MB", "bytes")


def _measure_small(
    echo: EchoServer, remote: "Remote", effort: Effort, size: int, in_flight: int
) -> Iterator[Measurement]:
    trips = effort.pick(in_flight, 10 * in_flight, 20 * in_flight)
    array = np.arange(size // 4, dtype=np.float32)
    message = array.tobytes()
    declared = fl.TensorType(np.float32, array.shape)
    assert np.array_equal(cast(Array, remote.run(lambda: remote.small_round_trip(array, declared))), array)
    echoes = many_times(lambda: echo.unary(message), trips, in_flight)
    round_trips = many_times(lambda: remote.small_round_trip(array, declared), trips, in_flight)
    name = f"{trips} round trips of {size >> 10} kB, {in_flight} at a time"
    floor = Floor(lambda: io_loop.run_sync(echoes()), "", _SMALL_TIMES, f"≤ {_SMALL_TIMES:.3g} × one echo")
    yield from compare_with_all(name, [floor], lambda: remote.run(round_trips), effort)


def _measure_large(echo: EchoServer, remote: "Remote", effort: Effort, megabytes: int) -> Iterator[Measurement]:
    array = np.arange(megabytes << 18, dtype=np.float32)
    declared = fl.TensorType(np.float32, array.shape)
    plain = array.view(np.uint8)
    message = plain.tobytes()
    copy = np.empty_like(plain)
    assert np.array_equal(cast(Array, remote.run(lambda: remote.round_trip(array, declared))), array)
    assert np.array_equal(io_loop.run_sync(echo.held(plain)), plain)

    def settle() -> None:
        remote.settle()
        warm_memory(4 * array.nbytes)

    one_message, chunked = _TIMES.get(megabytes, (None, None))
    floors = [
        Floor(lambda: io_loop.run_sync(echo.unary(message)), "one message", one_message),
        Floor(lambda: io_loop.run_sync(echo.held(plain)), "in chunks", chunked),
        Floor(lambda: io_loop.run_sync(echo.pipelined(plain)), "in chunks, not held"),
        Floor(lambda: np.copyto(copy, plain), "memcpy"),
    ]
    yield from compare_with_all(
        f"round trip of {megabytes} MB",
        floors,
        lambda: remote.run(lambda: remote.round_trip(array, declared)),
        effort,
        between=settle,
    )


class Remote:
    """A remote executor on a worker, and the event loop of somebody who uses it.

    Args:
      worker: The worker: a pool of one, or an address.
    """

    def __init__(self, worker: WorkerTargets) -> None:
        (self._stub,) = make_stubs(worker, None)
        # Values go at once, so that the memory of one turn is not freed in the next.
        self._executor = RemoteExecutor(self._stub, dispose_batch_size=1)
        # Of small values a call for each would be half of what is measured.
        self._small_executor = RemoteExecutor(self._stub)
        for executor in (self._executor, self._small_executor):
            executor.set_cardinalities({fl.CLIENTS: 0})
        self._loop = asyncio.new_event_loop()

    def run(self, work: Callable[[], Awaitable[object]]) -> object:
        """Awaits work on a loop of this thread, as a user's own code would."""

        async def awaited() -> object:
            return await work()

        return self._loop.run_until_complete(awaited())

    async def round_trip(self, array: Array, declared: fl.Type) -> object:
        """Creates a value at the worker and computes it."""
        return await (await self._executor.create_value(array, declared)).compute()

    async def small_round_trip(self, array: Array, declared: fl.Type) -> object:
        """The same with an executor that lets go of values in batches, as by default."""
        return await (await self._small_executor.create_value(array, declared)).compute()

    def settle(self) -> None:
        """Returns when the worker has let go of all values."""
        deadline = time.monotonic() + _SETTLING_SECONDS
        while io_loop.run_sync(self._stub.get_status()).values:
            if time.monotonic() > deadline:
                raise RuntimeError("Expected the worker to let go of values that nobody has, found that it does not")
            time.sleep(0.02)

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.close()
        self._small_executor.close()
        self._loop.close()
        io_loop.run_sync(self._stub.close())


def peaks_of_round_trip(megabytes: int) -> _Peaks:
    """Sends a value and fetches it; returns how much memory both sides had at their peaks beyond what they have to."""
    with local_worker_pool(1) as pool, Remote(pool) as remote:
        return _peaks_with(pool, remote, megabytes)


def _peaks_with(pool: WorkerPool, remote: Remote, megabytes: int) -> _Peaks:
    array = np.arange(megabytes << 18, dtype=np.float32)
    small = array[: 1 << 18]
    (worker,) = pool.pids
    remote.run(lambda: remote.round_trip(small, fl.TensorType(np.float32, small.shape)))
    remote.settle()
    before = resident_bytes(), resident_bytes(worker)
    result = remote.run(lambda: remote.round_trip(array, fl.TensorType(np.float32, array.shape)))
    after = peak_resident_bytes(), peak_resident_bytes(worker)
    assert np.array_equal(cast(Array, result), array)
    return {"client": after[0] - before[0] - array.nbytes, "worker": after[1] - before[1] - array.nbytes}
