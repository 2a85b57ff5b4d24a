"""A scheduler in a small world, which tests set from outside."""

from fedstack.errors import WorkerUnavailableError
from fedstack.service.coordinator.calls.closures import (
    Action,
    AskAgain,
    Closure,
    Fetch,
    Notify,
    RunClosures,
    Stop,
    WorkerState,
)
from fedstack.service.coordinator.scheduler import Scheduler

AWAY = WorkerUnavailableError("it is away")


class World:
    """A scheduler, a clock that the test sets, and workers that answer when the test says so.

    Attributes:
      notified: The closures whose callers were notified.
      stopped: The closures that were to be stopped.
      fetches: The closures whose values were to be brought here.
    """

    def __init__(self, workers: int = 1, **options: object) -> None:
        self.now = 0.5  # clocks begin anywhere
        self.scheduler = Scheduler(clock=lambda: self.now, **options)  # type: ignore[arg-type]
        self.notified: list[Closure] = []
        self.stopped: list[Closure] = []
        self.fetches: list[Closure] = []
        self.workers = [self.join(index) for index in range(workers)]

    def join(self, index: int, threads: int | None = None) -> WorkerState:
        worker = WorkerState(index, f"worker {index}", threads)
        self.scheduler.add_worker(worker)
        return worker

    def lose(self, worker: WorkerState) -> None:
        """A worker ends while it runs what it was given."""
        self.scheduler.lose_worker(worker, AWAY)

    def replace(self, worker: WorkerState) -> WorkerState:
        """A worker ends while it runs what it was given, and another one comes."""
        self.lose(worker)
        return self.join(worker.index + 1)

    def add(self, name: str, *needs: Closure, **options: object) -> Closure:
        closure = Closure("a call", needs, name=name, **options)  # type: ignore[arg-type]
        closure.callbacks[lambda: self.notified.append(closure)] = None
        self.scheduler.schedule(closure)
        return closure

    def act(self) -> list[Action]:
        """Does what the scheduler has decided, as far as it concerns no closures that are to run; returns all of it."""
        actions = self.scheduler.actions()
        for action in actions:
            match action:
                case Notify(callbacks):
                    for callback in callbacks:
                        callback()
                case Stop(_, closures):
                    self.stopped += closures
                case Fetch(_, closures):
                    self.fetches += closures
                case _:
                    pass
        return actions

    def asks_again(self) -> float | None:
        """Returns in how many seconds the scheduler wants to be asked again; until then nothing is to run."""
        actions = self.act()
        assert not any(isinstance(action, RunClosures) for action in actions)
        return next((action.seconds for action in actions if isinstance(action, AskAgain)), None)

    def given(self) -> dict[str, list[str]]:
        """Starts what the scheduler has decided; returns the names of the closures by worker."""
        given = [action for action in self.act() if isinstance(action, RunClosures)]
        for run in given:
            self.scheduler.called(run.worker, 1)
        return {run.worker.name: [closure.name for closure in run.closures] for run in given}

    def done(self, *closures: Closure) -> None:
        """Workers have run some closures, which are all that they were given in one call."""
        for closure in closures:
            worker = next(worker for worker in self.scheduler.workers if closure in worker.running)
            self.scheduler.succeeded(closure, worker, f"{closure.name} at {worker.name}")
        for worker in self.scheduler.workers:
            while worker.calls and not worker.running:
                self.scheduler.called(worker, -1)

    def copied(self, *closures: Closure) -> None:
        """Values were brought here."""
        for closure in closures:
            worker = next(iter(closure.held), self.workers[0])
            self.scheduler.copied(closure, "the value", worker)

    def fail(self, closure: Closure, error: Exception) -> None:
        worker = next(worker for worker in self.scheduler.workers if closure in worker.running)
        self.scheduler.failed(closure, worker, error)
        self.scheduler.called(worker, -1)

    def run(self, *closures: Closure) -> None:
        self.given()
        self.done(*closures)

    def one_by_one(self) -> list[str]:
        """Has one worker run all that is left, each when it is given it; returns the names in that order."""
        ran: list[str] = []
        while not self.scheduler.is_idle:
            (run,) = [action for action in self.act() if isinstance(action, RunClosures)]
            self.scheduler.called(run.worker, 1)
            for closure in run.closures:
                ran.append(closure.name)
                self.scheduler.succeeded(closure, run.worker, f"{closure.name} at {run.worker.name}")
            self.scheduler.called(run.worker, -1)
        return ran
