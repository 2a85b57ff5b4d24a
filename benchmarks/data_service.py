"""Reads datasets at data workers, beside gRPC that streams as many bytes, and counts what deaths cost."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.data_servers import ELEMENT_BYTES, DataServer, large, slowly
from benchmarks.echo import EchoServer
from benchmarks.harness import Effort, Measurement, compare
from fedstack.service.data import Dataset, DispatcherConfig, DispatchServer, WorkerConfig, WorkerServer, distribute
from fedstack.transport.peers.io_loop import io_loop

_RATES = {"parallel_epochs": 500_000, "distributed_epoch": 200_000}
_LARGE_TIMES = 1 / 0.8
_LOCAL_SECONDS = 20e-6
_END_SECONDS = 0.02
_WORKER_LEASE_SECONDS = 5.0
_AWAY_SECONDS, _LONGER_SECONDS = 1.0, 2.0
_SIZE = 6000


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures small and large elements, those of this process, the end of a pass, and deaths."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedstack-")))
        # Over the kind of connection that a data worker has.
        echo = stack.enter_context(EchoServer("127.0.0.1:0"))
        dispatcher = stack.enter_context(DataServer("dispatcher", "0", str(folder / "journal")))
        stack.enter_context(DataServer("worker", dispatcher.target))
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
        megabytes = large().take(many).apply(distribute("distributed_epoch", dispatcher.target))
        yield compare(
            f"{many} elements of 1 MiB",
            lambda: io_loop.run_sync(echo.receive(many * ELEMENT_BYTES)),
            lambda: _count(megabytes),
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
        dispatcher = stack.enter_context(DataServer("dispatcher", "0", folder))
        workers = [stack.enter_context(DataServer("worker", dispatcher.target)) for _ in range(2)]
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
            stack.enter_context(DataServer("dispatcher", port, folder))
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
