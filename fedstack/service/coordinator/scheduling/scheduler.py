"""Decides which closure runs where and what becomes of it: a state machine without tasks, sockets or threads."""

import time
from collections.abc import Callable, Iterator

from fedstack.errors import ClosureCancelledError
from fedstack.service.coordinator.scheduling.closures import Closure, Place, State
from fedstack.service.coordinator.scheduling.losses import (
    is_gone,
    lose_values,
    may_be_rebuilt,
    release,
    told_of,
    why_not_again,
)
from fedstack.service.coordinator.scheduling.queues import MOST_RUNNING, Queues

MOST_QUEUED = 262_144


class Scheduler:
    """The closures of one coordinator, and the places where they run.

    Events go in by methods: a closure is scheduled, has succeeded or failed, a place is there or lost. Decisions come
    out: `assignments`, and what `take_ended` and `take_cancelled` return. Not safe for threads.

    Args:
      most_queued: How many closures may be queued, waiting or running.
      most_running: How many run at one place at the same time.
      goes_on: Whether the other closures go on after an error; if not, they are cancelled.
      clock: Returns the time in seconds.
    """

    def __init__(
        self,
        most_queued: int = MOST_QUEUED,
        most_running: int = MOST_RUNNING,
        *,
        goes_on: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_queued = most_queued
        self._goes_on = goes_on
        self._queues = Queues(most_running, clock)
        self._unfinished: dict[Closure, None] = {}
        self._errors: dict[Exception, None] = {}
        self._ended: list[Closure] = []
        self._cancelled: list[Closure] = []

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that there are."""
        return self._queues.places

    @property
    def unfinished(self) -> int:
        """How many closures have not ended."""
        return len(self._unfinished)

    @property
    def running(self) -> int:
        """How many closures are under way at places, with those cancelled there that have not been answered for."""
        return sum(len(place.running) for place in self.places)

    @property
    def waiting(self) -> int:
        """How many closures have not begun: they wait for a place, or for others."""
        begun = sum(closure.state is State.RUNNING for place in self.places for closure in tuple(place.running))
        return max(0, len(self._unfinished) - begun)

    @property
    def values(self) -> int:
        """How many values places hold."""
        return sum(len(place.values) for place in self.places)

    @property
    def has_room(self) -> bool:
        """Whether one more closure may be scheduled."""
        return len(self._unfinished) < self._most_queued

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._unfinished and not self.running

    # What callers want.

    def schedule(self, closure: Closure) -> None:
        """A caller wants a closure to run, and has a handle to its value."""
        closure.users += 1
        self._begin(closure)

    def cancel(self, closure: Closure) -> bool:
        """A caller does not want a closure any more; returns whether it had not ended."""
        if closure.has_ended:
            return False
        self._cancel(closure)
        return True

    def need(self, closure: Closure) -> None:
        """A caller needs the value of a closure, which is rebuilt if it was lost."""
        if not is_gone(closure) and closure.state is State.LOST:
            self._begin(closure)

    def drop(self, closure: Closure) -> None:
        """A caller has no handle to a closure any more. One that has not ended runs all the same."""
        self._unuse(closure)

    def take_errors(self) -> list[Exception]:
        """Returns what has gone wrong since the last call of this method, the first error first.

        Where closures go on after errors, they are returned only once all have ended.
        """
        if self._goes_on and self._unfinished:
            return []
        errors, self._errors = list(self._errors), {}
        return errors

    @property
    def stops_at_errors(self) -> bool:
        """Whether an error cancels the other closures."""
        return not self._goes_on

    @property
    def has_errors(self) -> bool:
        """Whether `take_errors` would return some."""
        return bool(self._errors) and not (self._goes_on and self._unfinished)

    # What happens at places.

    def add_place(self, place: Place) -> None:
        """There is one more place, which has nothing to do."""
        self._queues.add_place(place)

    def lose_place(self, place: Place, error: Exception, *, at_work: bool = True) -> None:
        """A place is gone, and with it the values that only it held.

        Args:
          place: The place.
          error: Why.
          at_work: Whether what ran there may have ended it: it was still there when that began.
        """
        if place.lost:
            return
        place.lost = True
        self._queues.lose_place(place)
        lose_values(place)
        running = [closure for closure in place.running if closure.state is State.RUNNING]
        place.running.clear()
        for closure in reversed(running):
            closure.losses += at_work
            if closure.state is not State.RUNNING:
                continue  # cancelled, since another one failed
            failure = why_not_again(closure, error)
            if failure is None:
                self._begin(closure, first=True)
            else:
                self._fail(closure, failure)

    def silent(self, place: Place, is_silent: bool) -> None:
        """A place does not answer, or does so again: meanwhile others get what could run there."""
        place.silent = is_silent

    def drain(self, place: Place) -> None:
        """A place is about to stop: what runs there may end, and others get the rest."""
        place.draining = True

    def held_only_by(self, place: Place) -> list[Closure]:
        """Returns the closures whose values would be lost with a place."""
        return [
            closure
            for closure in place.values
            if closure.copy is None and all(other.draining for other in closure.held if other is not place)
        ]

    def assignments(self) -> list[tuple[Place, list[Closure]]]:
        """Returns which closures run where from now on: each list goes to its place in one call, or a few."""
        return self._queues.assignments(self._can_begin)

    def seconds_to_assignments(self) -> float | None:
        """Returns when to ask for `assignments` although nothing has happened until then; `None` for never."""
        return self._queues.seconds_to_assignments()

    def calls_begin(self, place: Place, count: int) -> None:
        """So many calls to a place begin."""
        place.calls += count

    def call_ended(self, place: Place) -> None:
        """A call to a place has ended."""
        place.calls -= 1

    def gone(self, closure: Closure, place: Place) -> None:
        """A place has nothing more to do with a closure that was cancelled."""
        self._queues.ended(closure, place, ran=False)

    def succeeded(self, closure: Closure, place: Place, held: object, copy: tuple[object] | None = None) -> None:
        """A place has run a closure, and holds its value.

        Args:
          closure: The closure.
          place: Where it ran.
          held: What stands for the value there.
          copy: The value, where it has been brought here.
        """
        self._queues.ended(closure, place)
        if closure.state is not State.RUNNING or place.lost:
            return
        closure.copy, closure.losses = copy, 0
        closure.held[place] = held
        place.values[closure] = None
        self._end(closure, State.READY)
        if not closure.users:
            release(closure)

    def failed(self, closure: Closure, place: Place, error: Exception) -> None:
        """A place has run a closure, which has failed by its own fault."""
        self._queues.ended(closure, place, ran=False)
        if place.lost:
            return  # it is queued again, or runs elsewhere
        if closure.state is State.RUNNING:
            self._fail(closure, error)
        elif self._errors:  # it was cancelled for another one, and failed all the same
            closure.state, closure.error = State.FAILED, error
            self._errors[error] = None

    def holds(self, closure: Closure, place: Place, held: object) -> None:
        """A place has the value of a closure, made there or brought there."""
        if closure.state is State.READY and not place.lost:
            closure.held[place] = held
            place.values[closure] = None

    def copied(self, closure: Closure, value: object) -> None:
        """The value of a closure has been brought here, where it stays for as long as anything may need it."""
        if closure.state in (State.READY, State.LOST):
            closure.state, closure.copy = State.READY, (value,)
            self._forget_call(closure)

    def gave_up(self, error: Exception) -> None:
        """There was no place for so long that nothing is waited for any more."""
        error.args = (f"{error}{told_of(self._unfinished)}",)
        for closure in list(self._unfinished):
            if not closure.has_ended:
                closure.error = error
                self._end(closure, State.FAILED)
        self._errors[error] = None

    # What follows from it.

    def take_ended(self) -> list[Closure]:
        """Returns the closures that have ended since the last call of this method."""
        ended, self._ended = self._ended, []
        return ended

    def take_cancelled(self) -> list[Closure]:
        """Returns the closures that were cancelled while they ran since the last call of this method."""
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def cancel_all(self) -> None:
        """Nobody wants any closure any more."""
        for closure in list(self._unfinished):
            self._cancel(closure)

    def _begin(self, begun: Closure, *, first: bool = False) -> None:
        """Queues a closure if its arguments are there; else it waits for those, of which the lost ones are rebuilt."""
        stack = [begun]
        while stack:
            closure = stack.pop()
            if closure not in self._unfinished:
                self._unfinished[closure] = None
                for need in closure.needs:
                    need.users += 1
            closure.state = State.WAITING
            gone = next(filter(is_gone, closure.needs), None)
            if gone is not None:
                self._end_as(closure, gone)
                return  # what is left of the stack was for those that have ended with it
            lacking = [need for need in dict.fromkeys(closure.needs) if not need.is_there]
            closure.missing = len(lacking)
            for need in lacking:
                need.dependents[closure] = None
            stack += [need for need in lacking if need.state is State.LOST]
            if not lacking:
                self._queue(closure, first=first)

    def _queue(self, closure: Closure, *, first: bool = False, at_once: bool = False) -> None:
        closure.state = State.QUEUED
        closure.depth = 1 + max((need.depth for need in closure.needs), default=0)
        self._queues.add(closure, first=first, at_once=at_once)

    def _can_begin(self, closure: Closure) -> bool:
        """Returns whether a closure that was queued can run now; rebuilds what it needs and was lost since."""
        if closure.state is not State.QUEUED:
            return False  # cancelled, or run from another queue
        if all(need.is_there for need in closure.needs):
            return True
        self._begin(closure)
        return False

    def _fail(self, closure: Closure, error: Exception) -> None:
        closure.error = error
        self._errors[error] = None
        self._end(closure, State.FAILED)
        if not self._goes_on:
            self.cancel_all()

    def _cancel(self, closure: Closure) -> None:
        closure.error = ClosureCancelledError(f"The call of {closure.name!r} was cancelled")
        if closure.state is State.RUNNING:
            self._cancelled.append(closure)
        self._end(closure, State.CANCELLED)

    def _end(self, closure: Closure, state: State) -> None:
        """Ends a closure, and those that cannot run without its value."""
        for ending in self._all_that_end(closure, state):
            self._unfinished.pop(ending, None)
            self._ended.append(ending)
            for need in ending.needs:
                need.dependents.pop(ending, None)
                self._unuse(need)
            if ending.state is not State.READY or not may_be_rebuilt(ending):
                self._forget_call(ending)

    def _all_that_end(self, closure: Closure, state: State) -> Iterator[Closure]:
        closure.state = state
        stack = [closure]
        while stack:
            ending = stack.pop()
            was_counted = ending in self._unfinished
            dependents, ending.dependents = list(ending.dependents), {}
            if was_counted:
                yield ending
            for dependent in dependents:
                if dependent.state is not State.WAITING:
                    continue
                if state is State.READY:
                    dependent.missing -= 1
                    if not dependent.missing:
                        self._queue(dependent, at_once=True)
                else:
                    dependent.state, dependent.error = state, closure.error
                    stack.append(dependent)

    def _end_as(self, closure: Closure, need: Closure) -> None:
        """Ends a closure as one that it needs has ended."""
        if need.state is State.FAILED and need.error is not None:
            self._fail(closure, need.error)
        else:
            self._cancel(closure)

    def _unuse(self, closure: Closure) -> None:
        closure.users -= 1
        if not closure.users and closure.state in (State.READY, State.LOST):
            release(closure)

    def _forget_call(self, closure: Closure) -> None:
        """Drops what it would take to run a closure again, which has ended."""
        closure.call, closure.needs, closure.depth = None, (), 0

    def __repr__(self) -> str:
        return (
            f"<Scheduler of {self.unfinished} closures, {self.running} of them running, {self.values} values at "
            f"{len(self.places)} places>"
        )
