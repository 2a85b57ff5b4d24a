"""Sends values to a worker and fetches them again over streams, beside bare sockets and beside gRPC.

Also sends one value to all workers of a pool, which share its memory.
"""

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.bare_echo import BareEcho
from benchmarks.echo import EchoServer, many_times
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from benchmarks.memory import warm_memory
from benchmarks.remote_values import Remote
from fedstack.service.pool.worker_pool import local_worker_pool
from fedstack.transport.peers.io_loop import io_loop

# What a small value may take there and back, in echoes of gRPC over TCP, and a large one, in those of a bare socket.
_SMALL = {("TCP", 1 << 10): 0.5, ("TCP", 64 << 10): 0.6, ("unix", 1 << 10): 0.35, ("unix", 64 << 10): 0.35}
_LARGE = {"TCP": 1.25, "unix": 1.0}


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures round trips of small and of large values, over TCP and over Unix sockets."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedstack-")))
        echo = stack.enter_context(EchoServer("127.0.0.1:0"))
        for kind, path in (("TCP", ""), ("unix", f"{folder / 'bare'}")):
            with _worker(kind) as remote:
                for size in (1 << 10, 64 << 10):
                    yield from _measure_small(echo, remote, effort, kind, size)
                with BareEcho(path) as bare:
                    for megabytes in effort.pick([1], [128], [128, 512]):
                        yield from _measure_large(bare, remote, effort, kind, megabytes)
    yield from _measure_shared(effort)


@contextlib.contextmanager
def _worker(kind: str) -> Iterator[Remote]:
    if kind == "unix":
        with local_worker_pool(1) as pool, Remote(pool) as remote:
            yield remote
        return
    command = [sys.executable, "-m", "fedstack", "serve", "--port", "0", "--exit-with-parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        found = re.search(r"127\.0\.0\.1:\d+", worker.stdout.readline())
        assert found is not None
        with Remote(found[0]) as remote:
            yield remote
        worker.stdin.close()


def _measure_small(echo: EchoServer, remote: Remote, effort: Effort, kind: str, size: int) -> Iterator[Measurement]:
    trips = effort.pick(1, 10, 20)
    array = np.arange(size // 4, dtype=np.float32)
    message, declared = array.tobytes(), fl.TensorType(np.float32, array.shape)
    remote.run(lambda: remote.small_round_trip(array, declared))
    echoes = many_times(lambda: echo.unary(message), trips, 1)
    round_trips = many_times(lambda: remote.small_round_trip(array, declared), trips, 1)
    most = _SMALL[kind, size]
    floor = Floor(lambda: io_loop.run_sync(echoes()), "", most, f"≤ {most} × an echo of gRPC over TCP")
    name = f"{trips} round trips of {size >> 10} kB over {kind}"
    yield from compare_with_all(name, [floor], lambda: remote.run(round_trips), effort)


def _measure_large(bare: BareEcho, remote: Remote, effort: Effort, kind: str, megabytes: int) -> Iterator[Measurement]:
    array = np.arange(megabytes << 18, dtype=np.float32)
    declared = fl.TensorType(np.float32, array.shape)
    content, into = array.view(np.uint8).data, np.empty(array.nbytes, np.uint8).data
    remote.run(lambda: remote.round_trip(array, declared))

    def settle() -> None:
        remote.settle()
        warm_memory(4 * array.nbytes)

    floor = Floor(lambda: bare.echo(content, into), "", _LARGE[kind], f"≤ {_LARGE[kind]} × a bare socket")
    yield from compare_with_all(
        f"round trip of {megabytes} MB over {kind}",
        [floor],
        lambda: remote.run(lambda: remote.round_trip(array, declared)),
        effort,
        between=settle,
    )


def _measure_shared(effort: Effort) -> Iterator[Measurement]:
    """Sends one large model to all workers of a pool, and gets a number back."""
    workers, size = effort.pick(2, 8, 8), effort.pick(1, 128, 128) << 18
    model = np.ones(size, np.float32)
    copied, values = np.empty_like(model), [0.0] * workers
    model_type = fl.TensorType(np.float32, [size])
    ends = fedstack.python_computation([model_type, np.float32], np.float32)(lambda model, x: model[0] + model[-1] + x)
    same = fedstack.python_computation([np.float32], np.float32)(lambda x: x)
    at_clients = fl.FederatedType(np.float32, fl.CLIENTS)

    @fl.federated_computation(fl.FederatedType(model_type, fl.SERVER), at_clients)
    def total(model: Any, values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(ends, (fl.federated_broadcast(model), values)))

    @fl.federated_computation(at_clients)
    def empty(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(same, values))

    def floor() -> None:
        np.copyto(copied, model)
        empty(values)

    with local_worker_pool(workers) as pool, fedstack.create_sync_remote_execution_context(pool):
        assert total(model, values) == 2 * workers
        name = f"{size >> 18} MB to {workers} workers of a pool, a sum back"
        floors = [Floor(floor, "", 1.3, "≤ 1.3 × one copy and a phase without data")]
        yield from compare_with_all(name, floors, lambda: total(model, values), effort)
