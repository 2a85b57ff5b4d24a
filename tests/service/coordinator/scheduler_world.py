"""A scheduler in a small world, which tests set from outside."""

from fedstack.errors import WorkerUnavailableError
from fedstack.service.coordinator.scheduling.closures import Closure, Place
from fedstack.service.coordinator.scheduling.scheduler import Scheduler

AWAY = WorkerUnavailableError("it is away")


class World:
    """A scheduler, a clock that the test sets, and places that answer when the test says so."""

    def __init__(self, places: int = 1, **options: object) -> None:
        self.now = 0.5  # clocks begin anywhere
        self.scheduler = Scheduler(clock=lambda: self.now, **options)  # type: ignore[arg-type]
        self.places = [self.join(index) for index in range(places)]

    def join(self, index: int, threads: int | None = None) -> Place:
        place = Place(index, f"worker {index}", threads)
        self.scheduler.add_place(place)
        return place

    def lose(self, place: Place) -> None:
        """A worker ends while it runs what it was given."""
        self.scheduler.lose_place(place, AWAY)

    def replace(self, place: Place) -> Place:
        """A worker ends while it runs what it was given, and another one comes."""
        self.lose(place)
        return self.join(place.index + 1)

    def add(self, name: str, *needs: Closure, **options: object) -> Closure:
        closure = Closure("a call", needs, name=name, **options)  # type: ignore[arg-type]
        self.scheduler.schedule(closure)
        return closure

    def given(self) -> dict[str, list[str]]:
        """Starts what the scheduler has decided; returns the names of the closures by worker."""
        given = self.scheduler.assignments()
        for place, _ in given:
            self.scheduler.calls_begin(place, 1)
        return {place.name: [closure.name for closure in closures] for place, closures in given}

    def done(self, *closures: Closure) -> None:
        """Workers have run some closures, which are all that they were given in one call."""
        for closure in closures:
            place = next(place for place in self.scheduler.places if closure in place.running)
            self.scheduler.succeeded(closure, place, f"{closure.name} at {place.name}")
        for place in self.scheduler.places:
            while place.calls and not place.running:
                self.scheduler.call_ended(place)

    def fail(self, closure: Closure, error: Exception) -> None:
        place = next(place for place in self.scheduler.places if closure in place.running)
        self.scheduler.failed(closure, place, error)
        self.scheduler.call_ended(place)

    def run(self, *closures: Closure) -> None:
        self.given()
        self.done(*closures)

    def one_by_one(self) -> list[str]:
        """Has one worker run all that is left, each when it is given it; returns the names in that order."""
        ran: list[str] = []
        while not self.scheduler.is_idle:
            ((place, closures),) = self.scheduler.assignments()
            self.scheduler.calls_begin(place, 1)
            for closure in closures:
                ran.append(closure.name)
                self.scheduler.succeeded(closure, place, f"{closure.name} at {place.name}")
            self.scheduler.call_ended(place)
        return ran
