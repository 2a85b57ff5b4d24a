"""Reads datasets at data workers, beside gRPC that streams as many bytes, and counts what deaths cost.

`python -m benchmarks.data_service dispatcher|worker …` serves; `_Server` starts that in a process of its own.
"""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.echo import EchoServer
from benchmarks.harness import Effort, Measurement, compare
from benchmarks.memory import ROOT
from fedstack.leaves import CarrierPolicy
from fedstack.service.data import Dataset, DispatcherConfig, DispatchServer, WorkerConfig, WorkerServer, distribute
from fedstack.transport.peers.io_loop import io_loop

_RATES = {"parallel_epochs": 500_000, "distributed_epoch": 200_000}
_ELEMENT_BYTES = 1 << 20
_LARGE_TIMES = 1 / 0.8
_LOCAL_SECONDS = 20e-6
_END_SECONDS = 0.02
_WORKER_LEASE_SECONDS = 5.0
_AWAY_SECONDS, _LONGER_SECONDS = 1.0, 2.0
_SIZE = 6000


def _megabytes(split: int) -> Iterator[Any]:
    element = np.ones(_ELEMENT_BYTES // 8)
    element.flags.writeable = False  # else each would be copied, as the next turn may change it
    while True:
        yield element


def _large() -> Dataset:
    return Dataset.from_generator(_megabytes, fl.TensorType(np.float64, [_ELEMENT_BYTES // 8]), name="megabytes")


@fedstack.python_computation([np.int64], np.int64)
def slowly(x: Any) -> Any:
    """Returns a number after half a millisecond."""
    time.sleep(0.0005)
    return x


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures small and large elements, those of this process, the end of a pass, and deaths."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedstack-")))
        # Over the kind of connection that a data worker has.
        echo = stack.enter_context(EchoServer("127.0.0.1:0"))
        dispatcher = stack.enter_context(_Server("dispatcher", "0", str(folder / "journal")))
        stack.enter_context(_Server("worker", dispatcher.target))
        for mode, rate in _RATES.items():
            rows = effort.pick(1_000, 200_000, 1_000_000)
            numbers = Dataset.range(rows).apply(distribute(mode, dispatcher.target))
            assert _count(numbers) == rows
            yield compare(
                f"{rows:,} int64 numbers, {mode}",
                lambda rows=rows: io_loop.run_sync(echo.receive(8 * rows)),
                lambda numbers=numbers: _count(numbers),
                effort,
                seconds=rows / rate,
                reach=f"≥ {rate:,} a second",
            )
        many = effort.pick(2, 32, 512)  # to open a pass takes some 6 ms, and here the rate counts
        large = _large().take(many).apply(distribute("distributed_epoch", dispatcher.target))
        yield compare(
            f"{many} elements of 1 MiB",
            lambda: io_loop.run_sync(echo.receive(many * _ELEMENT_BYTES)),
            lambda: _count(large),
            effort,
            times=_LARGE_TIMES,
            reach="≥ 0.8 × the rate of gRPC",
        )
        yield _measure_end(Dataset.range(4).apply(distribute("distributed_epoch", dispatcher.target)), effort)
    yield _measure_local(effort)
    yield from _measure_deaths(effort)


def _count(elements: Iterable[object]) -> int:
    return sum(1 for _ in elements)


def _measure_end(few: Iterable[object], effort: Effort) -> Measurement:
    ends: list[float] = []
    for _ in range(effort.pick(2, 10, 30)):
        last = 0.0
        for _ in few:
            last = time.perf_counter()
        ends.append(time.perf_counter() - last)
    return Measurement(
        "end of a pass over 4 elements, after the last", min(ends), None, _END_SECONDS, f"≤ {_END_SECONDS * 1e3:g} ms"
    )


def _measure_local(effort: Effort) -> Measurement:
    rows = effort.pick(100, 10_000, 100_000)
    array = np.ones((rows, 128))
    with contextlib.ExitStack() as stack:
        dispatcher = stack.enter_context(DispatchServer(DispatcherConfig(protocol="grpc+local")))
        stack.enter_context(WorkerServer(WorkerConfig(dispatcher.target, protocol="grpc+local")))
        dataset = Dataset.from_arrays(array).apply(distribute("distributed_epoch", dispatcher))
        return compare(
            f"{rows:,} elements of 1 KiB in this process",
            lambda: _count(array),
            lambda: _count(dataset),
            effort,
            seconds=rows * _LOCAL_SECONDS,
            reach=f"≤ {_LOCAL_SECONDS * 1e6:g} µs an element",
        )


def _measure_deaths(effort: Effort) -> Iterator[Measurement]:
    size = effort.pick(300, _SIZE, _SIZE)
    with tempfile.TemporaryDirectory(prefix="fedstack-") as folder, contextlib.ExitStack() as stack:
        dispatcher = stack.enter_context(_Server("dispatcher", "0", folder))
        workers = [stack.enter_context(_Server("worker", dispatcher.target)) for _ in range(2)]
        numbers = Dataset.range(size).map(slowly)

        def seconds_after(at: int, event: Callable[[], None]) -> tuple[float, int]:
            elements, found, begun = numbers.apply(distribute("distributed_epoch", dispatcher.target)), 0, 0.0
            for found, _ in enumerate(elements, 1):
                if found == at:
                    begun = time.perf_counter()
                    event()
            return time.perf_counter() - begun, found

        away: list[float] = []

        def restart() -> None:
            begun = time.perf_counter()
            dispatcher.kill()
            port = dispatcher.target.rpartition(":")[2]
            stack.enter_context(_Server("dispatcher", port, folder))
            away.append(time.perf_counter() - begun)

        undisturbed, _ = seconds_after(size // 3, lambda: None)
        restarting = threading.Thread(target=restart)
        longer, found = seconds_after(size // 3, restarting.start)
        restarting.join()
        assert found == size
        name = f"dispatcher killed at a third of {size} elements, and started again: how much longer"
        limit, details = away[0] - _AWAY_SECONDS + _LONGER_SECONDS, {"away": away[0]}
        reach = f"≤ {_LONGER_SECONDS:g} s, were it away for {_AWAY_SECONDS:g} s"
        yield Measurement(name, max(0.0, longer - undisturbed), None, limit, reach, details=details)
        ended, found = seconds_after(size // 3, workers[0].kill)
        limit = undisturbed * 2 + _WORKER_LEASE_SECONDS + 1.0
        name = f"worker killed at a third of {size} elements: until the end of the pass"
        yield Measurement(name, ended, undisturbed, limit, "≤ lease + 1 s", details={"missing": size - found})


class _Server:
    """A process with a dispatcher or a worker.

    Attributes:
      target: Its address.
    """

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.data_service", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # as workers have it, see `BareProcess`
        )
        assert self._process.stdout is not None
        self.target = self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "_Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _serve(kind: str, *arguments: str) -> None:
    if kind == "dispatcher":
        port, folder = arguments
        server: Any = DispatchServer(DispatcherConfig(int(port), work_dir=folder, fault_tolerant_mode=True))
    else:
        _large()  # is registered here
        server = WorkerServer(WorkerConfig(*arguments, policy=CarrierPolicy(python_code=True)))
    print(server.target, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
