"""Defines what a scheduler knows of one scheduled call, and of one worker."""

import enum
import itertools
from collections.abc import Callable

import attrs

from fedstack.service.coordinator.scheduling.pace import Pace


class State(enum.Enum):
    """What has become of a closure. It is in exactly one of these states; values are words for people."""

    WAITING = "waiting for its arguments"
    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    """Its value is at a worker, or a copy of it is here."""
    LOST = "lost, and rebuilt when it is needed"
    """It was ready, and what held its value is gone."""
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({State.READY, State.LOST, State.FAILED, State.CANCELLED})
"""In these states nothing is left to run, unless a lost value is needed."""


@attrs.define(eq=False, repr=False)
class Place:
    """One worker, from one loss to the next: after a loss the same worker is another place.

    Attributes:
      index: The number of the worker.
      name: What errors and the representation call it.
      threads: How many calls it runs at the same time at most; `None` if that is not known.
      running: The closures that it was given, and when, until it has answered for each; also those cancelled since.
      values: The closures whose values it holds.
      calls: How many calls to it are under way.
      due: When it may be given more although calls are under way.
      silent: Whether it does not answer, and gets nothing more.
      draining: Whether it is about to stop, and gets nothing more.
      lost: Whether it is gone.
      pace: How long calls take there.
    """

    index: int
    name: str
    threads: int | None = None
    running: "dict[Closure, float]" = attrs.field(factory=lambda: dict[Closure, float]())
    values: "dict[Closure, None]" = attrs.field(factory=lambda: dict[Closure, None]())
    calls: int = 0
    due: float = 0.0
    silent: bool = False
    draining: bool = False
    lost: bool = False
    pace: Pace = attrs.field(factory=Pace)

    def __repr__(self) -> str:
        return f"<Place {self.name}, {len(self.running)} running, {len(self.values)} values>"


_serials = itertools.count(1)


@attrs.define(eq=False, repr=False)
class Closure:
    """A call that is to run once at some worker, and what came of it. Only its scheduler changes what is here.

    Attributes:
      call: What to run, for whoever runs it; `None` once it cannot be run again.
      needs: The closures whose values are its arguments.
      prefetch: Whether its value is brought home before it counts as there.
      repeatable: Whether it may run again where a worker was lost.
      name: What errors call it.
      serial: Its number in the order of scheduling, in this process.
      state: What has become of it.
      held: What stands for its value at each place that has it.
      copy: Its value here, in a tuple of one; `None` if there is none.
      error: Why it failed.
      losses: How many workers were lost while they ran it.
      users: How many refer to its value: the caller's handle, and closures that have not ended.
      missing: How many of its arguments are not there yet.
      dependents: The closures that wait for it.
      depth: How many calls have to be repeated one after the other to rebuild it, at most.
      on_end: Called when it has ended, and then forgotten.
    """

    call: object
    needs: "tuple[Closure, ...]" = ()
    repeatable: bool = True
    prefetch: bool = False
    name: str = ""
    serial: int = attrs.field(factory=lambda: next(_serials))
    state: State = State.WAITING
    held: dict[Place, object] = attrs.field(factory=dict[Place, object])
    copy: tuple[object] | None = None
    error: Exception | None = None
    losses: int = 0
    users: int = 0
    missing: int = 0
    dependents: "dict[Closure, None]" = attrs.field(factory=lambda: dict[Closure, None]())
    depth: int = 1
    on_end: dict[Callable[[], None], None] = attrs.field(factory=lambda: dict[Callable[[], None], None]())

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to run."""
        return self.state in ENDED

    @property
    def is_there(self) -> bool:
        """Whether its value is there, as an argument of others."""
        return self.state is State.READY

    def __repr__(self) -> str:
        where = "".join(f" at {place.name}" for place in self.held)
        return f"<Closure {self.serial} {self.name!r} {self.state.value}{where}>"
