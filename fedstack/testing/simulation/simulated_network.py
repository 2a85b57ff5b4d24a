"""The simulated network, which delays and loses messages. A seed determines all decisions."""

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
        raise InvalidValueError(
            f"Expected {attribute.name} as a pair of the minimum and maximum number of seconds, found {value!r}"
        )


@attrs.frozen(kw_only=True)
class SimulatedFaults:
    """The kinds and rates of simulated faults. By default messages are delayed, and no message is lost.

    Rates are from 0 to 1. Pairs are the minimum and maximum number of seconds. A mean of infinity means never.

    Attributes:
      delay: The delay of a message. Delays are drawn per message, so calls can overtake each other; the messages of one
        call keep their order.
      slow_rate: The rate of messages that take `slow_seconds` longer.
      slow_seconds: The additional delay of a slow message, in seconds.
      lost_rate: The rate of calls whose connection breaks before the request arrives.
      answer_lost_rate: The rate of calls whose connection breaks after the work, before the response arrives.
      doubled_rate: The rate of requests that are delivered twice.
      crash_seconds: The mean time between crashes of a worker, in seconds.
      restart_seconds: The time from a crash to the restart.
      part_seconds: The mean time between silent cuts of the network path to a worker, in seconds.
      heal_seconds: The time until a cut path is restored.
      stall_seconds: The mean time between stalls of a worker, in seconds.
      resume_seconds: The time until a stalled worker resumes.
      drain_seconds: The mean time between drains of a worker, in seconds. It then accepts no new sessions.
      grace_seconds: The time from the beginning of a drain until the worker ends, with all that it has not done; see
        `restart_seconds`.
      join_seconds: The time from the beginning of the program until a worker starts for the first time.
      cut_seconds: The mean time between cuts of the path between two processes, in seconds; see `heal_seconds`.
      commit_seconds: The duration of a commit on a disk.
      power_loss_rate: The rate of commits during which the power fails, so that any part of the commit is on the disk.
      full_disk_rate: The rate of changes that fail because the disk is full. Nothing of a failed change is stored.
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
    drain_seconds: float = attrs.field(default=float("inf"), validator=number_validator(endless=True))
    grace_seconds: tuple[float, float] = attrs.field(default=(0.5, 10.0), validator=_is_span)
    join_seconds: tuple[float, float] = attrs.field(default=(0.0, 0.0), validator=_is_span)
    cut_seconds: float = attrs.field(default=float("inf"), validator=number_validator(endless=True))
    commit_seconds: tuple[float, float] = attrs.field(default=(0.0, 0.002), validator=_is_span)
    power_loss_rate: float = attrs.field(default=0.0, validator=rate_validator)
    full_disk_rate: float = attrs.field(default=0.0, validator=rate_validator)

    @classmethod
    def rough(cls) -> "SimulatedFaults":
        """Returns faults of all kinds, at rates that cause about a dozen faults per simulated minute."""
        return cls(
            slow_rate=0.02,
            lost_rate=0.01,
            answer_lost_rate=0.01,
            doubled_rate=0.02,
            crash_seconds=20.0,
            part_seconds=30.0,
            stall_seconds=20.0,
            drain_seconds=60.0,
            join_seconds=(0.0, 0.5),
            cut_seconds=30.0,
            commit_seconds=(0.0, 0.05),
            power_loss_rate=0.01,
            full_disk_rate=0.005,
        )


class SimulatedNetwork:
    """Decides the fate of messages, and records a trace of the simulation.

    Args:
      loop: The event loop of the simulation.
      seed: The seed of all random decisions.
      faults: The faults to simulate.

    Attributes:
      io: The event loop, in the form that connections need.
      faults: The faults to simulate.
      lines: The lines of the trace so far.
      wrongs: The violated invariants so far. They fail the run even if the program handles their errors.
      changed: A future that is done when the state of a process or a path changes. It is then replaced by a new one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, faults: SimulatedFaults) -> None:
        self.io = IoLoop(loop)
        self.faults = faults
        self._seed = seed
        self._chances: dict[tuple[str, str], random.Random] = {}
        self.lines: list[str] = []
        self.wrongs: list[str] = []
        self.changed: asyncio.Future[None] = loop.create_future()
        self._calls = 0
        self._cut: set[frozenset[str]] = set()

    def say(self, text: str) -> None:
        """Adds a line to the trace, with the simulated time."""
        self.lines.append(f"{self.io.time():10.4f}  {text}")

    def wrong(self, text: str) -> None:
        """Records a violated invariant, so that the run fails."""
        self.say(f"wrong: {text}")
        self.wrongs.append(text)

    def change(self, text: str) -> None:
        """Records a state change of a process or a path, and wakes the tasks that wait for `changed`."""
        self.say(f"== {text}")
        changed, self.changed = self.changed, self.io.loop.create_future()
        changed.set_result(None)

    def cut(self, one: str, other: str) -> None:
        """Cuts the path between two processes silently: neither process is notified."""
        self._cut.add(frozenset((one, other)))
        self.change(f"{one} and {other} parted")

    def join(self, one: str, other: str) -> None:
        """Restores the path between two processes."""
        if self.is_cut(one, other):
            self._cut.discard(frozenset((one, other)))
            self.change(f"{one} and {other} joined")

    def is_cut(self, one: str, other: str) -> bool:
        """Returns whether the path between two processes is cut."""
        return frozenset((one, other)) in self._cut

    def number(self) -> int:
        """Returns the next number of a call."""
        self._calls += 1
        return self._calls

    def chance(self, what: str, who: str = "") -> random.Random:
        """Returns the random generator for one kind of decision about one process.

        A decision is therefore a function of the seed, what is decided, about whom, and how often this has been decided
        before. It does not depend on decisions of other kinds.
        """
        found = self._chances.get((what, who))
        if found is None:
            found = self._chances[what, who] = random.Random(f"{self._seed} {what} {who}")
        return found

    def happens(self, rate: float, what: str, who: str = "") -> bool:
        """Decides at random whether an event with the given rate, from 0 to 1, happens; see `chance`."""
        return rate > 0 and self.chance(what, who).random() < rate

    def delay(self, who: str) -> float:
        """Returns a random delay for a message to or from a process, in seconds."""
        seconds = self.chance("delay", who).uniform(*self.faults.delay)
        is_slow = self.happens(self.faults.slow_rate, "slow message", who)
        return seconds + self.faults.slow_seconds if is_slow else seconds

    async def now_and_then(self, mean_seconds: float, happen: Callable[[], None], what: str, who: str) -> None:
        """Calls a function repeatedly, after random pauses with the given mean; never if the mean is infinite."""
        while mean_seconds != float("inf"):
            await asyncio.sleep(self.chance(what, who).expovariate(1 / mean_seconds))
            happen()
