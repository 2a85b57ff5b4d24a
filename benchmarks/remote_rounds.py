"""Runs rounds over workers: what they cost beside gRPC that moves the same bytes, and how many calls they take."""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
from numpy.typing import NDArray

import fedstack
from benchmarks.echo import EchoServer, answer_of
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.service.pool.worker_pool import WorkerPool, local_worker_pool
from fedstack.transport.peers.io_loop import io_loop

Vector = NDArray[np.float32]
_VECTOR = 10_000
_WORKERS = 2
_MESSAGE_BYTES = 1024
# What goes on beside computations, whether there are any or not, and asking itself.
_BACKGROUND = frozenset({"RenewLease", "Dispose", "GetStatus"})


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures a mean of vectors, the fixed cost of a round, and the calls that computations take."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedstack-")))
        echoes = [stack.enter_context(EchoServer(f"unix:{folder / str(i)}")) for i in range(_WORKERS)]
        pool = stack.enter_context(local_worker_pool(_WORKERS))
        with _remote(pool):
            yield from _measure_mean(echoes, effort)
        with _remote(pool.targets[0], credentials=pool.credentials):
            for clients in effort.pick([3], [10, 10_000], [10, 10_000]):
                yield from _measure_round(echoes[0], clients, effort)
        for operations in (1, effort.pick(2, 20, 20)):
            for clients in effort.pick([3], [10, 1000, 10_000], [10, 1000, 10_000]):
                yield from _count_calls(pool, clients, operations)


@contextlib.contextmanager
def _remote(targets: Any, **options: Any) -> Iterator[None]:
    with fedstack.create_sync_remote_execution_context(targets, **options):
        yield


def _measure_mean(echoes: Sequence[EchoServer], effort: Effort) -> Iterator[Measurement]:
    clients = effort.pick(4, 1000, 1000)
    random = np.random.default_rng(7)
    vectors = [random.standard_normal(_VECTOR, np.float32) for _ in range(clients)]

    @fl.federated_computation(fl.FederatedType(fl.TensorType(np.float32, [_VECTOR]), fl.CLIENTS))
    def mean(values: Any) -> Any:
        return fl.federated_mean(values)

    half = clients // _WORKERS
    shares = [[answer_of(4 * _VECTOR), *(v.view(np.uint8).data for v in vectors[i * half :][:half])] for i in range(2)]

    async def move() -> list[bytes]:
        return await asyncio.gather(*(echo.take(share) for echo, share in zip(echoes, shares)))

    async def move_whole() -> list[bytes]:
        return await asyncio.gather(*(echo.take_whole(share) for echo, share in zip(echoes, shares)))

    assert np.allclose(mean(vectors), np.mean(vectors, axis=0), atol=1e-6)
    name = f"mean of {clients:,} × {4 * _VECTOR // 1000} kB over {_WORKERS} workers"
    floors = [
        Floor(lambda: io_loop.run_sync(move_whole()), "to the same bytes", 1.3, "≤ 1.3 × bytes in a message"),
        Floor(lambda: io_loop.run_sync(move()), "to the same bytes in chunks", 1.3, "≤ 1.3 × bytes in chunks"),
    ]
    yield from compare_with_all(name, floors, lambda: mean(vectors), effort)


def _measure_round(echo: EchoServer, clients: int, effort: Effort) -> Iterator[Measurement]:
    values = [float(i) for i in range(clients)]
    mean = _mean_after(1)
    message = bytes(_MESSAGE_BYTES)
    name = f"round of {clients:,} scalars over 1 worker"
    floor = Floor(lambda: io_loop.run_sync(echo.unary(message)), "to an echo of 1 kB")
    yield from compare_with_all(name, [floor], lambda: mean(values), effort)


def _mean_after(operations: int) -> Any:
    half = fedstack.python_computation([np.float32], np.float32)(lambda x: x * np.float32(0.5))

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def mean(values: Any) -> Any:
        for _ in range(operations):
            values = fl.federated_map(half, values)
        return fl.federated_mean(values)

    return mean


def _count_calls(pool: WorkerPool, clients: int, operations: int) -> Iterator[Measurement]:
    values = [1.0] * clients
    mean = _mean_after(operations)
    with _remote(pool):
        # At first: two handshakes (is it there, who is it), a session, the phase.
        for when, most in (("first", 4), ("again", 1)):
            before = _calls(pool)
            mean(values)
            calls = _calls(pool) - before
            name = f"calls, {clients:,} clients, {operations} operations, {when}"
            most_of_one = max(sum(n for (worker, _), n in calls.items() if worker == i) for i in range(_WORKERS))
            methods = ", ".join(sorted({method for _, method in calls}))
            yield Measurement(name, most_of_one, None, most, f"≤ {most} a worker", "count", {"methods": methods})


def _calls(pool: WorkerPool) -> Counter[tuple[int, str]]:
    """Counts the calls that each worker has answered, by method."""
    counts: Counter[tuple[int, str]] = Counter()
    for worker, stub in enumerate(make_stubs(pool, None)):
        try:
            for call in io_loop.run_sync(stub.get_status()).calls:
                method = call.method.rpartition("/")[2]
                if method not in _BACKGROUND:
                    counts[worker, method] += call.count
        finally:
            io_loop.run_sync(stub.close())
    return counts
