"""How long closures take in all where one worker is slower than another, on simulated time."""

import heapq
import itertools

import pytest

from fedstack.service.coordinator.calls.closures import AskAgain, Closure, RunClosures, WorkerState
from fedstack.service.coordinator.scheduler import Scheduler


class Workers:
    """Workers that run closures on a clock of their own.

    Args:
      seconds: How long a closure takes, by the name of the worker.
      threads: How many of them a worker runs at the same time.
      told: Whether the scheduler knows that number.
    """

    def __init__(self, seconds: dict[str, float], threads: int = 8, told: bool = True) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(clock=lambda: self.now)
        self._seconds = seconds
        self._free = {name: [0.0] * threads for name in seconds}
        self._numbers = itertools.count()
        self._ends: list[tuple[float, int, WorkerState, Closure]] = []
        self.ran: list[str] = []
        self.stuck: set[str] = set()
        for index, name in enumerate(seconds):
            self.scheduler.add_worker(WorkerState(index, name, threads if told else None))

    def run(self, closures: int, name: str = "work") -> float:
        """Runs some closures, and returns how long that took."""
        begun = self.now
        for _ in range(closures):
            self.scheduler.schedule(Closure("a call", name=name))
        while not self.scheduler.is_idle:
            self.go_on()
        return self.now - begun

    def _begin(self, worker: WorkerState, closure: Closure) -> None:
        self.ran.append(worker.name)
        if worker.name in self.stuck:
            return
        begin = max(self.now, heapq.heappop(self._free[worker.name]))
        end = begin + self._seconds[worker.name]
        heapq.heappush(self._free[worker.name], end)
        heapq.heappush(self._ends, (end, next(self._numbers), worker, closure))

    def go_on(self) -> None:
        """Begins what is to run, and waits until something happens."""
        moments: list[float] = []
        for action in self.scheduler.actions():
            if isinstance(action, RunClosures):
                for closure in action.closures:
                    self._begin(action.worker, closure)
            elif isinstance(action, AskAgain):
                moments.append(self.now + max(action.seconds, 1e-6))
        if self.scheduler.is_idle:
            return
        moments += [self._ends[0][0]] if self._ends else []
        assert moments, "nothing runs, and the scheduler waits for nothing"
        self.now = min(moments)
        while self._ends and self._ends[0][0] <= self.now:
            _, _, worker, closure = heapq.heappop(self._ends)
            self.scheduler.succeeded(closure, worker, "held")


@pytest.mark.parametrize(("closures", "threads"), [(132, 8), (66, 8), (40, 2), (300, 32), (17, 1)])
def test_a_slow_worker_does_not_hold_the_end_of_others(closures: int, threads: int) -> None:
    workers = Workers({"fast": 0.05, "slow": 0.5}, threads)
    at_once = min(threads, 8)
    ideal = closures / (at_once / 0.05 + at_once / 0.5)
    # A closure at the slow worker takes half a second, however little there is to do.
    assert workers.run(closures) <= max(1.3 * ideal, 0.5 + 0.05)
    assert workers.run(closures) <= 1.3 * ideal
    assert workers.ran.count("fast") + workers.ran.count("slow") == 2 * closures, "each ran once"


def test_equal_workers_share_the_work() -> None:
    workers = Workers({"one": 0.3, "other": 0.3})
    assert workers.run(64) == pytest.approx(4 * 0.3, abs=0.01)
    assert workers.ran.count("one") == workers.ran.count("other")


def test_a_slow_worker_runs_what_waits_behind_a_fast_one_that_does_not_come_to_its_end() -> None:
    workers = Workers({"fast": 0.1, "slow": 1.0})
    workers.run(40)
    workers.stuck.add("fast")
    for _ in range(16):
        workers.scheduler.schedule(Closure("a call", name="work"))
    for _ in range(100):
        if workers.scheduler.waiting == 0:
            break
        workers.go_on()
    assert workers.scheduler.waiting == 0


def test_a_worker_that_was_slow_once_is_given_work_again() -> None:
    workers = Workers({"fast": 0.1, "slow": 1.0})
    workers.run(40)
    workers._seconds["slow"] = 0.1
    while workers.now < 30.0:
        workers.run(16)
    workers.ran.clear()
    workers.run(16)
    assert workers.ran.count("slow") == 8
