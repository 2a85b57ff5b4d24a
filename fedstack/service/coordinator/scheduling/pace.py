"""Knows how long calls take at a place: what a slow one had better leave to others follows from it."""

# A call that takes no longer costs about as much on its way as at the worker, which is to have the next one by then.
_QUICK_SECONDS = 0.05
# How much the last call counts, of all before.
_NEWEST = 0.4
_MOST_NAMES = 100
_LEAST_SECONDS = 1e-6
# How much longer calls take at a slow place: the same call takes now more time and now less at equal ones.
_TIMES_SLOWER = 2.5
# A place counts as slow for so many times as long as its calls took. The first may have had to load what they run.
_TIMES_REMEMBERED = 10.0


class Pace:
    """How long the calls of one place take, from the moment that it is given them: of each name on its own.

    Attributes:
      is_quick: Whether the last one took next to no time.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # how long they take, and when that was last heard
        self.is_quick = False

    def note(self, name: str, seconds: float, now: float) -> None:
        """A call has ended after so many seconds."""
        self.is_quick = seconds <= _QUICK_SECONDS
        before, _ = self._known.pop(name, (seconds, now))
        # Last: it was heard of last.
        self._known[name] = max(before + _NEWEST * (seconds - before), _LEAST_SECONDS), now
        if len(self._known) > _MOST_NAMES:
            del self._known[next(iter(self._known))]

    def slow_seconds(self, name: str, now: float) -> float | None:
        """Returns how long calls of a name take; `None` where that is too short to matter, or too long ago to count."""
        seconds, heard = self._known.get(name, (0.0, now))
        return None if seconds <= _QUICK_SECONDS or now > heard + _TIMES_REMEMBERED * seconds else seconds

    def fast_seconds(self, name: str, others: float) -> float | None:
        """Returns how long calls of a name take; `None` where that is not much less than they take others."""
        found = self._known.get(name)
        return None if found is None or found[0] * _TIMES_SLOWER > others else found[0]

    def __repr__(self) -> str:
        return f"<Pace of {len(self._known)} names>"
