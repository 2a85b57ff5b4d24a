"""The network of a simulation: what happens to messages on their way, decided by a seed."""

import asyncio
import random
from collections.abc import Callable, Sequence

import attrs

from fedstack.errors import InvalidValueError
from fedstack.foundations.number_checks import number_validator
from fedstack.testing.fault_injection import rate_validator
from fedstack.transport.peers.io_loop import IoLoop


def _is_span(_: object, attribute: "attrs.Attribute[tuple[float, float]]", value: Sequence[float]) -> None:
    if len(value) != 2 or not 0 <= value[0] <= value[1]:
        raise InvalidValueError(f"Expected {attribute.name} as the least and the most seconds, found {value!r}")


@attrs.frozen(kw_only=True)
class SimulatedFaults:
    """What goes wrong in a simulation, and how often. By default messages take a while, and arrive.

    Attributes:
      delay: The least and the most seconds that a message takes. Each has a delay of its own, so calls overtake each
        other; the messages of one call do not.
      slow_rate: How many messages, from 0 to 1, take `slow_seconds` more.
      slow_seconds: See `slow_rate`.
      lost_rate: How many calls lose their connection before the request is there.
      answer_lost_rate: How many calls lose it after the work is done, before the answer is there.
      doubled_rate: How many requests come to the worker twice.
      crash_seconds: After how many seconds on average a worker crashes; infinity for never.
      restart_seconds: The least and the most seconds until it is started again.
      part_seconds: After how many seconds on average the way to a worker is cut, which nobody is told.
      heal_seconds: The least and the most seconds until it is there again.
      stall_seconds: After how many seconds on average a worker stands still.
      resume_seconds: The least and the most seconds until it goes on.
      cut_seconds: After how many seconds on average one process is cut off from one other; see `heal_seconds`.
      commit_seconds: The least and the most seconds that a disk takes for a commit.
      power_loss_rate: In how many commits the power fails, so that any part of them is on the disk.
      full_disk_rate: How many changes find the disk full, so that nothing of them is kept.
    """

    delay: tuple[float, float] = attrs.field(default=(0.0005, 0.005), validator=_is_span)
    slow_rate: float = attrs.field(default=0.0, validator=rate_validator)
    slow_seconds: float = attrs.field(default=1.0, validator=number_validator())
    lost_rate: float = attrs.field(default=0.0, validator=rate_validator)
    answer_lost_rate: float = attrs.field(default=0.0, validator=rate_validator)
    doubled_rate: float = attrs.field(default=0.0, validator=rate_validator)
    crash_seconds: float = attrs.field(default=float("inf"), validator=number_validator(endless=True))
    restart_seconds: tuple[float, float] = attrs.field(default=(0.05, 3.0), validator=_is_span)
    part_seconds: float = attrs.field(default=float("inf"), validator=number_validator(endless=True))
    heal_seconds: tuple[float, float] = attrs.field(default=(0.05, 20.0), validator=_is_span)
    stall_seconds: float = attrs.field(default=float("inf"), validator=number_validator(endless=True))
    resume_seconds: tuple[float, float] = attrs.field(default=(0.05, 5.0), validator=_is_span)
    cut_seconds: float = attrs.field(default=float("inf"), validator=number_validator(endless=True))
    commit_seconds: tuple[float, float] = attrs.field(default=(0.0, 0.002), validator=_is_span)
    power_loss_rate: float = attrs.field(default=0.0, validator=rate_validator)
    full_disk_rate: float = attrs.field(default=0.0, validator=rate_validator)

    @classmethod
    def rough(cls) -> "SimulatedFaults":
        """Returns faults of all kinds, so many that a minute sees a dozen of them."""
        return cls(
            slow_rate=0.02,
            lost_rate=0.01,
            answer_lost_rate=0.01,
            doubled_rate=0.02,
            crash_seconds=20.0,
            part_seconds=30.0,
            stall_seconds=20.0,
            cut_seconds=30.0,
            commit_seconds=(0.0, 0.05),
            power_loss_rate=0.01,
            full_disk_rate=0.005,
        )


class SimulatedNetwork:
    """Decides about messages, and writes down what happens.

    Args:
      loop: The simulation's loop.
      seed: Decides everything that is left to chance.
      faults: What goes wrong.

    Attributes:
      io: The loop, for whoever has a connection.
      chance: The source of all that is random.
      lines: What has happened so far, a line each.
      wrongs: What was found wrong so far, whatever the program makes of it.
      changed: Is done when something has happened to a process, or the way between two; another one then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, faults: SimulatedFaults) -> None:
        self.io = IoLoop(loop)
        self.faults = faults
        self.chance = random.Random(seed)
        self.lines: list[str] = []
        self.wrongs: list[str] = []
        self.changed: asyncio.Future[None] = loop.create_future()
        self._calls = 0
        self._cut: set[frozenset[str]] = set()

    def say(self, text: str) -> None:
        """Writes down what happens."""
        self.lines.append(f"{self.io.time():10.4f}  {text}")

    def wrong(self, text: str) -> None:
        """Writes down what must not be; the run fails."""
        self.say(f"wrong: {text}")
        self.wrongs.append(text)

    def change(self, text: str) -> None:
        """Writes down what has happened to a process or a way, and wakes those who wait for such things."""
        self.say(f"== {text}")
        changed, self.changed = self.changed, self.io.loop.create_future()
        changed.set_result(None)

    def cut(self, one: str, other: str) -> None:
        """Cuts the way between two processes. Nobody is told."""
        self._cut.add(frozenset((one, other)))
        self.change(f"{one} and {other} parted")

    def join(self, one: str, other: str) -> None:
        """Restores the way between two processes."""
        if self.is_cut(one, other):
            self._cut.discard(frozenset((one, other)))
            self.change(f"{one} and {other} joined")

    def is_cut(self, one: str, other: str) -> bool:
        """Returns whether the way between two processes is cut."""
        return frozenset((one, other)) in self._cut

    def number(self) -> int:
        """Returns the number of a new call."""
        self._calls += 1
        return self._calls

    def happens(self, rate: float) -> bool:
        """Decides whether something happens that does so at a rate from 0 to 1."""
        return rate > 0 and self.chance.random() < rate

    def delay(self) -> float:
        """Decides how many seconds a message takes."""
        seconds = self.chance.uniform(*self.faults.delay)
        return seconds + self.faults.slow_seconds if self.happens(self.faults.slow_rate) else seconds

    async def now_and_then(self, mean_seconds: float, happen: Callable[[], None]) -> None:
        """Lets something happen again and again, after pauses of a mean length."""
        while mean_seconds != float("inf"):
            await asyncio.sleep(self.chance.expovariate(1 / mean_seconds))
            happen()
