"""Sends values to a worker and fetches them again over streams, beside bare sockets and beside gRPC."""

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import federated_language as fl
import numpy as np

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
