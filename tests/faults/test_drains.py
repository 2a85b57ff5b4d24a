"""What a worker that is told to stop hands over: what it has finished runs nowhere again."""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from await_until import await_until
from serving import Server, served

from fedstack.service.coordinator import ClusterCoordinator, RemoteValue, current_worker_index

pytestmark = pytest.mark.slow

OPTIONS = ("--allow-python-code",)
CALLS = 100


def _noted(file: Path) -> Callable[[int], tuple[int, int]]:
    """Returns a function that notes in a file that it has run. It goes by value: workers do not have this module."""

    def noted(number: int) -> tuple[int, int]:
        with file.open("a") as runs:
            runs.write(f"{number}\n")
        time.sleep(0.02)
        return number, current_worker_index()

    return noted


def _runs(file: Path) -> Counter[int]:
    return Counter(map(int, file.read_text().split())) if file.exists() else Counter()


def _stop(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)


def _at(values: list[RemoteValue], server: Server) -> bool:
    return any(place.name == server.target for value in values for place in value.closure.held)


@pytest.mark.long
def test_what_draining_workers_have_begun_runs_once_and_their_values_survive(tmp_path: Path) -> None:
    noted = _noted(tmp_path / "runs")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(served(*OPTIONS)) for _ in range(3)]
        coordinator = stack.enter_context(ClusterCoordinator([server.target for server in servers]))
        values: list[RemoteValue] = []
        for drain, server in enumerate(servers[1:], 1):
            more = [coordinator.schedule(noted, (n,), prefetch=n % 2 == 0) for n in range(len(values), drain * CALLS)]
            values += more
            await_until(lambda more=more, server=server: _at(more, server))
            _stop(server)
        coordinator.join(timeout=60.0)
        _stop(servers[0])  # idle, and holds values that nobody has asked for
        assert [server.process.wait(60.0) for server in servers] == [0, 0, 0]
        found = coordinator.fetch(values, timeout=30.0)
        assert [number for number, _ in found] == list(range(2 * CALLS))
        assert {index for _, index in found} == {0, 1, 2}
        assert _runs(tmp_path / "runs") == Counter(range(2 * CALLS))


@pytest.mark.long
def test_what_outlasts_the_grace_of_a_drain_runs_again_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "runs"

    def slow_at_the_first() -> int:
        with file.open("a") as runs:
            runs.write("0\n")
        if current_worker_index() == 0:
            time.sleep(60.0)
        return current_worker_index()

    with (
        served(*OPTIONS, "--grace-seconds", "0.5") as stops,
        served(*OPTIONS) as stays,
        ClusterCoordinator([stops.target, stays.target], max_running=1) as coordinator,
    ):
        await_until(lambda: "2 workers" in repr(coordinator))
        values = [coordinator.schedule(slow_at_the_first) for _ in range(2)]
        await_until(lambda: _runs(file)[0] == 2)
        _stop(stops)
        assert coordinator.fetch(values, timeout=60.0) == [1, 1]
        assert _runs(file)[0] == 3
