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
FULL = Effort(2, 5, 0.5)


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
    """

    def __init__(self, call: Callable[..., object], prepare: Call | None = None) -> None:
        self._call = call
        self._prepare = prepare
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
    timed_floor, timed_subject = Timed(floor, prepare), Timed(subject, prepare)
    with frozen_garbage():
        timed_floor.warm_up()
        timed_subject.warm_up()
        for attempt in (1, 2):
            turns = 0
            while (
                turns < effort.repetitions or min(timed_floor.seconds, timed_subject.seconds) < attempt * effort.seconds
            ):
                timed_floor.turn()
                timed_subject.turn()
                turns += 1
            limit = seconds if times is None else times * timed_floor.best
            if limit is None or timed_subject.best <= limit:
                break
    found: dict[str, float | str] = {
        "turns": len(timed_subject.times),
        "floor_spread": timed_floor.spread,
        "subject_spread": timed_subject.spread,
    }
    if not reach and times is not None:
        reach = f"≤ {times:g} ×"
    elif not reach and seconds is not None:
        reach = f"≤ {seconds * 1e3:g} ms"
    return Measurement(name, timed_subject.best, timed_floor.best, limit, reach, details={**found, **(details or {})})


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
