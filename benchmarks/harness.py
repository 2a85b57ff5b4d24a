"""Times a subject against a floor in the same run, in turn, and keeps the best of each.

The machine may be shared: absolute times wander by a third within the hour, the ratio of two best times does not. So
a floor and a subject alternate (A B A B …), each for at least five turns and half a second, and a ratio is what counts.
"""

import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs
import numpy as np

T = TypeVar("T")
Call = Callable[[], object]
Details = Mapping[str, float | str]

# A turn calls something quick so often that the timer's resolution and the call of the timer do not matter.
_TURN_SECONDS = 0.002


@attrs.frozen
class Effort:
    """How much to do.

    Attributes:
      size: 0 for the smallest possible, 1 for quick, 2 for the real thing.
      repetitions: The least number of turns of floor and subject.
      seconds: The least time for the floor, and for the subject.
    """

    size: int
    repetitions: int
    seconds: float

    def pick(self, tiny: T, quick: T, full: T) -> T:
        """Returns what belongs to the size."""
        return (tiny, quick, full)[self.size]


TINY = Effort(0, 1, 0.0)
QUICK = Effort(1, 5, 0.1)
FULL = Effort(2, 5, 1.0)


@attrs.frozen
class Measurement:
    """One line of the table.

    Attributes:
      name: What was measured.
      subject: What fedstack takes, in `unit`.
      floor: What the same takes without fedstack; `None` where there is no such thing.
      limit: What fedstack may take, in `unit`; `None` where nothing is asked.
      reach: The limit in words.
      unit: "s", "bytes", "count" or "error".
      details: Further figures.
    """

    name: str
    subject: float
    floor: float | None = None
    limit: float | None = None
    reach: str = ""
    unit: str = "s"
    details: Details = attrs.field(factory=dict)

    @property
    def ratio(self) -> float | None:
        """The subject in floors."""
        return self.subject / self.floor if self.floor else None

    @property
    def used(self) -> float | None:
        """The part of the limit that is used up; more than 1 is a miss."""
        if self.limit is None:
            return None
        if self.limit <= 0:
            return 0.0 if self.subject <= self.limit else float("inf")
        return max(0.0, self.subject / self.limit)


class Timed:
    """The times of something that is called in turns.

    Args:
      call: What to time.
      prepare: Called before each call, untimed; its result is what `call` gets.
      between: Called before each turn, untimed.
    """

    def __init__(self, call: Callable[..., object], prepare: Call | None = None, between: Call | None = None) -> None:
        self._call = call
        self._prepare = prepare
        self._between = between
        self._calls = 1
        self.times: list[float] = []
        self.seconds = 0.0

    def warm_up(self) -> None:
        """Calls once or twice, and finds out how many calls make a turn."""
        seconds = self._turn()
        if self._prepare is None and seconds < _TURN_SECONDS:
            seconds = self._turn()  # the first call of all fills caches
            self._calls = max(1, round(_TURN_SECONDS / max(seconds, 1e-8)))

    def turn(self) -> None:
        """Takes one more time."""
        if self._between is not None:
            self._between()
        # What the turn before left is collected outside; what a turn itself causes to be collected is its own cost.
        gc.collect()
        seconds = self._turn()
        self.seconds += seconds
        self.times.append(seconds / self._calls)

    def _turn(self) -> float:
        call = self._call
        if self._prepare is not None:
            prepared = self._prepare()
            begin = time.perf_counter()
            call(prepared)
            return time.perf_counter() - begin
        calls = range(self._calls)
        begin = time.perf_counter()
        for _ in calls:
            call()
        return time.perf_counter() - begin

    @property
    def best(self) -> float:
        """The best time of a call, in seconds."""
        return min(self.times)

    @property
    def spread(self) -> float:
        """The median in best times: near 1 on a quiet machine."""
        return statistics.median(self.times) / self.best


@attrs.frozen
class Floor:
    """Something to compare with.

    Attributes:
      call: Does the work without fedstack.
      name: Tells it from the other floors of the same subject; empty if it is the only one.
      times: How many of these floors the subject may take; `None` where nothing is asked.
      reach: The limit in words; by default made of `times`.
    """

    call: Callable[..., object]
    name: str = ""
    times: float | None = None
    reach: str = ""


def compare(
    name: str,
    floor: Callable[..., object],
    subject: Callable[..., object],
    effort: Effort,
    *,
    times: float | None = None,
    seconds: float | None = None,
    reach: str = "",
    prepare: Call | None = None,
    details: Details | None = None,
) -> Measurement:
    """Times `floor` and `subject` in turn.

    One that misses its limit gets a second try, and the best of both counts; so does the best of the floor's.

    Args:
      name: What is measured.
      floor: Does the work without fedstack.
      subject: Does it with fedstack.
      effort: How often and how long.
      times: How many floors the subject may take.
      seconds: How long the subject may take, if that does not depend on the floor.
      reach: The limit in words; by default made of `times` or `seconds`.
      prepare: Makes a fresh argument for each call of either, untimed.
      details: Further figures for the measurement.
    """
    (measurement,) = compare_with_all(
        name,
        [Floor(floor, "", times, reach)],
        subject,
        effort,
        seconds=seconds,
        prepare=prepare,
        details=details,
    )
    return measurement


def compare_with_all(
    name: str,
    floors: Sequence[Floor],
    subject: Callable[..., object],
    effort: Effort,
    *,
    seconds: float | None = None,
    prepare: Call | None = None,
    between: Call | None = None,
    details: Details | None = None,
) -> list[Measurement]:
    """Times several floors and one subject in turn, and returns a measurement for each floor.

    Args:
      name: What is measured.
      floors: What to compare with.
      subject: Does the work with fedstack.
      effort: How often and how long.
      seconds: How long the subject may take, if that does not depend on the floors.
      prepare: Makes a fresh argument for each call, untimed.
      between: Called before each turn, untimed, so that what one leaves behind does not burden the next.
      details: Further figures for the measurements.
    """
    timed_floors = [Timed(floor.call, prepare, between) for floor in floors]
    timed_subject = Timed(subject, prepare, between)
    everything = [*timed_floors, timed_subject]

    def limits() -> list[float | None]:
        return [
            seconds if floor.times is None else floor.times * timed.best for floor, timed in zip(floors, timed_floors)
        ]

    with frozen_garbage():
        for timed in everything:
            timed.warm_up()
        for attempt in (1, 2):
            turns = 0
            while turns < effort.repetitions or min(t.seconds for t in everything) < attempt * effort.seconds:
                for timed in everything:
                    timed.turn()
                turns += 1
            if all(limit is None or timed_subject.best <= limit for limit in limits()):
                break
    measurements: list[Measurement] = []
    for floor, timed, limit in zip(floors, timed_floors, limits()):
        found: dict[str, float | str] = {
            "turns": len(timed_subject.times),
            "floor_spread": timed.spread,
            "subject_spread": timed_subject.spread,
        }
        reach = floor.reach
        if not reach and floor.times is not None:
            reach = f"≤ {floor.times:g} ×"
        elif not reach and seconds is not None:
            reach = f"≤ {seconds * 1e3:g} ms"
        line = f"{name}, {floor.name}" if floor.name else name
        all_details = {**found, **(details or {})}
        measurements.append(Measurement(line, timed_subject.best, timed.best, limit, reach, details=all_details))
    return measurements


@contextlib.contextmanager
def frozen_garbage() -> Iterator[None]:
    """Hides the objects that are there from the garbage collector for the block.

    The collector stays on, because what it costs a program is part of what the program costs; but how many objects
    the benchmarks and earlier workloads keep must not matter.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def cores(count: int) -> Iterator[None]:
    """Keeps this thread, and threads that it starts in the block, on `count` cores; where there is no such call, not.

    Threads of a pool that was there before go on elsewhere, so make pools and contexts inside the block.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[-count:]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Returns the fixed part and the slope of `y` over `x`, by least squares of the relative residuals."""
    if len(x) < 2:
        return 0.0, y[0] / x[0]
    weights = 1.0 / np.asarray(y)
    slope, fixed = np.polyfit(np.asarray(x), np.asarray(y), 1, w=weights)
    return float(fixed), float(slope)
