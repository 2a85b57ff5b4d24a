"""Calls registered methods, beside gRPC that sends plain bytes back.

`python -m benchmarks.methods TARGET` serves; `_Methods` starts that in a process of its own.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.echo import EchoServer, many_times
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from benchmarks.memory import ROOT, warm_memory
from fedstack.service import rpc
from fedstack.transport.peers.io_loop import io_loop

Array = NDArray[np.float32]
_READY_SECONDS = 30.0
_IN_FLIGHT = 32
# How many echoes a call may take: with the function on a thread, and on the loop.
_TIMES, _TIMES_INLINE = 2.0, 1 / 0.65
_MEGABYTES = 16, 256
_SMALL_SECONDS = 1.0


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures small calls, large arguments and results, and a small call while a large one goes on."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedstack-")))
        echo = stack.enter_context(EchoServer(f"unix:{folder / 'echo'}"))
        methods = stack.enter_context(_Methods(f"unix:{folder / 'methods'}"))
        for in_flight in (1, _IN_FLIGHT):
            for name, times in (("add", _TIMES), ("add_inline", _TIMES_INLINE)):
                yield from _measure_add(echo, methods.client, effort, name, in_flight, times)
        for megabytes in effort.pick([1], [16], _MEGABYTES):
            yield from _measure_large(echo, methods.client, effort, megabytes)
        yield _measure_meanwhile(methods.client, effort.pick(1, 64, 256))


def _measure_add(
    echo: EchoServer, client: rpc.Client, effort: Effort, name: str, in_flight: int, times: float
) -> Iterator[Measurement]:
    calls = effort.pick(in_flight, 10 * in_flight, 20 * in_flight)
    message = np.zeros(2, np.int32).tobytes()
    echoes = many_times(lambda: echo.unary(message), calls, in_flight)
    assert client.call(name, [1, 2]).get_value() == 3

    def add() -> None:
        if in_flight == 1:
            blocking = getattr(client, f"{name}_blocking")
            for _ in range(calls):
                blocking(1, 2)
        else:
            asyncio.run(many_times(lambda: client.call(name, [1, 2]), calls, in_flight)())

    where = "on the loop" if name == "add_inline" else "on a thread"
    floor = Floor(lambda: io_loop.run_sync(echoes()), "", times, f"≥ {1 / times:.3g} × the rate of echoes")
    yield from compare_with_all(f"{calls} calls of add {where}, {in_flight} at a time", [floor], add, effort)


def _measure_large(echo: EchoServer, client: rpc.Client, effort: Effort, megabytes: int) -> Iterator[Measurement]:
    array = np.arange(megabytes << 18, dtype=np.float32)
    message = array.tobytes()
    assert np.array_equal(client.call("same", [array]).get_value(), array)
    floor = Floor(lambda: io_loop.run_sync(echo.unary(message)), "one message", 1.0, "faster than one message")
    yield from compare_with_all(
        f"argument and result of {megabytes} MB",
        [floor],
        lambda: client.call("same", [array]).get_value(),
        effort,
        between=lambda: warm_memory(4 * array.nbytes),
    )


def _measure_meanwhile(client: rpc.Client, megabytes: int) -> Measurement:
    array, small = np.zeros(megabytes << 18, np.float32), np.zeros(16 << 10, np.float32)
    longest, calls = 0.0, 0
    result = client.call("same", [array])
    while not result.done():
        begun = time.perf_counter()
        client.call("same", [small]).get_value()
        longest, calls = max(longest, time.perf_counter() - begun), calls + 1
    name = f"the slowest of {calls} calls with 64 kB while {megabytes} MB go there and back"
    return Measurement(name, longest, None, _SMALL_SECONDS, f"≤ {_SMALL_SECONDS:g} s")


class _Methods:
    """A process that serves methods, and a client of it."""

    def __init__(self, target: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.methods", target],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # as workers have it, see `BareProcess`
        )
        self.client = rpc.Client.create("grpc", target, timeout_in_ms=1000 * _READY_SECONDS)

    def __enter__(self) -> "_Methods":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.communicate(timeout=_READY_SECONDS)


def _add(x: np.int32, y: np.int32) -> np.int32:
    return x + y


def _same(array: Array) -> Array:
    return array


def _serve(target: str) -> None:
    server = rpc.Server.create("grpc", target)
    for name, inline in (("add", False), ("add_inline", True)):
        server.register(name, _add, inline, parameter_types=[np.int32, np.int32], result_type=np.int32)
    server.register("same", _same, parameter_types=[(np.float32, [None])], result_type=(np.float32, [None]))
    with server:
        sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1])
