"""Decides which of the closures that can run goes to which place, and when."""

from collections import deque
from collections.abc import Callable, Sequence

from fedstack.service.coordinator.scheduling.closures import Closure, Place, State
from fedstack.service.coordinator.scheduling.losses import runs_alone

MOST_RUNNING = 8
# Closures that come while a call is under way wait so long for others to go along with.
GATHER_SECONDS = 0.002


class Queues:
    """The places, and the closures that wait for one.

    Each place has a queue of those whose arguments it holds; there is one more for all others.

    Args:
      most_running: How many closures run at one place at the same time.
      clock: Returns the time in seconds.
    """

    def __init__(self, most_running: int, clock: Callable[[], float]) -> None:
        self._most_running = most_running
        self._clock = clock
        self._places: dict[Place, deque[Closure]] = {}
        self._anywhere: deque[Closure] = deque()
        self._suspects: deque[Closure] = deque()
        self._again: float | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that there are."""
        return tuple(self._places)

    def add_place(self, place: Place) -> None:
        """There is one more place."""
        self._places[place] = deque()

    def lose_place(self, place: Place) -> None:
        """A place is gone; what waited for it runs elsewhere."""
        self._anywhere.extendleft(reversed(self._places.pop(place)))

    def add(self, closure: Closure, *, first: bool, at_once: bool) -> None:
        """A closure can run.

        Args:
          closure: The closure.
          first: Whether it is to run before others.
          at_once: Whether not to wait for others to go along with to where its arguments are: of a chain, each link
            would wait anew.
        """
        if runs_alone(closure):
            self._suspects.append(closure)
            return
        home = next((place for need in closure.needs for place in need.held), None)
        queue = self._anywhere if home is None else self._places[home]
        if home is not None and at_once:
            home.due = 0.0
        if first:
            queue.appendleft(closure)
        else:
            queue.append(closure)

    def assignments(self, can_begin: Callable[[Closure], bool]) -> list[tuple[Place, list[Closure]]]:
        """Returns which closures run where from now on.

        Args:
          can_begin: Returns whether one that was added can still run.
        """
        now, given = self._clock(), dict[Place, list[Closure]]()
        self._again = None
        free = [place for place in self._places if self._takes_more(place, now)]
        while free:
            place = min(free, key=lambda one: len(one.running))
            closure = self._next_for(place, can_begin, now)
            if closure is None:
                free.remove(place)
                continue
            closure.state = State.RUNNING
            place.running[closure] = now
            given.setdefault(place, []).append(closure)
            if not self._takes_more(place, now):
                free.remove(place)
        for place in given:
            place.due = now + GATHER_SECONDS
        return list(given.items())

    def seconds_to_assignments(self) -> float | None:
        """Returns when to ask for `assignments` although nothing has happened until then; `None` for never."""
        if not (self._anywhere or self._suspects or any(self._places.values())):
            return None
        now = self._clock()
        due = [place.due for place in self._places if self._gathers(place, now) and not self._is_full(place)]
        if self._again is not None:
            due.append(max(now, self._again))
        return min(due) - now if due else None

    def ended(self, closure: Closure, place: Place, *, ran: bool = True) -> None:
        """A place has no more to do with a closure.

        Args:
          closure: The closure.
          place: The place.
          ran: Whether it has run to its end.
        """
        begun = place.running.pop(closure, None)
        if ran and begun is not None:
            now = self._clock()
            place.pace.note(closure.name, now - begun, now)

    def _takes_more(self, place: Place, now: float) -> bool:
        if self._is_full(place) or self._gathers(place, now):
            return False
        return not any(map(runs_alone, place.running))

    def _gathers(self, place: Place, now: float) -> bool:
        """Returns whether what comes while a call to a place is under way still waits for others to go along with."""
        return place.calls > 0 and place.due > now

    def _is_full(self, place: Place) -> bool:
        return place.silent or place.draining or len(place.running) >= self._most_at(place)

    def _most_at(self, place: Place) -> int:
        """Returns how many closures a place has at most: more than it runs only where these come and go quickly.

        What waits there while others have nothing to do cannot be had back.
        """
        if place.threads is None or place.pace.is_quick:
            return self._most_running
        return min(self._most_running, place.threads)

    def _leaves_to_others(self, place: Place, queue: Sequence[Closure], now: float) -> bool:
        """Returns whether faster places would be through with a queue before one had run the first of it."""
        own = place.pace.slow_seconds(queue[0].name, now)
        if own is None:
            return False
        per_second, least, until = 0.0, own, now
        for other in self._places:
            seconds = other.pace.fast_seconds(queue[0].name, own)
            oldest = next(iter(other.running.values()), now)
            # What runs for longer than it used to may run for ever: there is no counting on such a place.
            if seconds is None or other.silent or other.draining or oldest + own <= now:
                continue
            per_second += self._most_at(other) / seconds
            least, until = min(least, seconds), max(until, oldest + own)
        if not per_second or len(queue) / per_second + least >= own:
            return False
        self._again = until if self._again is None else min(until, self._again)
        return True

    def _next_for(self, place: Place, can_begin: Callable[[Closure], bool], now: float) -> Closure | None:
        """Returns the closure that runs at a place next, if there is one."""
        own = self._places[place]
        candidates = [] if place.running else [self._suspects]
        candidates += [own, self._anywhere]
        # What others have and cannot run now is brought here last, with its arguments.
        full = [queue for other, queue in self._places.items() if self._is_full(other)]
        candidates += sorted(full, key=len, reverse=True)
        for queue in candidates:
            while queue:
                if queue is not own and self._leaves_to_others(place, queue, now):
                    break
                closure = queue.popleft()
                if can_begin(closure):
                    return closure
        return None

    def __repr__(self) -> str:
        return f"<Queues of {len(self._places)} places>"
