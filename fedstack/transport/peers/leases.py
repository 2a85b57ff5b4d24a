"""Keeps leases: what nobody renews in time has run out."""

import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

import attrs

from fedstack.errors import InvalidValueError, ResourceLimitError

_Key = TypeVar("_Key", bound=Hashable)


@attrs.define
class _Lease:
    """How long one lasts, when it runs out unless it is held, and how often it is held, in seconds of the clock."""

    seconds: float
    end: float
    holds: int = 0


class Leases(Generic[_Key]):
    """Leases by key. A lease ends when it is ended, or when it runs out.

    One that is held does not run out, and begins anew when the last hold is released: work that takes long is a sign of
    life of who asked for it. One that has run out stays out, even if nobody has asked `expired` yet.

    Args:
      max_leases: The most leases at a time.
      clock: Tells the time in seconds.
    """

    def __init__(self, max_leases: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_leases = max_leases
        self._clock = clock
        self._leases: dict[_Key, _Lease] = {}

    def open(self, key: _Key, seconds: float) -> None:
        """Begins a lease.

        Args:
          key: Names it.
          seconds: How long it lasts from now on, and from each renewal on.

        Raises:
          ResourceLimitError: If there are too many.
          InvalidValueError: If there is one of that key, or it would last no time.
        """
        if not seconds > 0:
            raise InvalidValueError(f"Expected a lease of more than 0 seconds, found {seconds}")
        if key in self._leases:
            raise InvalidValueError(f"Expected a new key for a lease, found {key!r}, which has one")
        if len(self._leases) >= self._max_leases:
            raise ResourceLimitError(
                f"Expected at most {self._max_leases} leases at a time, found one more asked for; end others, or let "
                "them run out"
            )
        self._leases[key] = _Lease(seconds, self._clock() + seconds)

    def renew(self, key: _Key) -> bool:
        """Begins a lease anew; returns whether there is one, for one that has ended is not renewed."""
        lease = self._alive(key)
        if lease is not None:
            lease.end = self._clock() + lease.seconds
        return lease is not None

    def end(self, key: _Key) -> None:
        """Ends a lease, if there is one."""
        self._leases.pop(key, None)

    def hold(self, key: _Key) -> bool:
        """Keeps a lease from running out until it is released as often; returns whether there is one."""
        lease = self._alive(key)
        if lease is not None:
            lease.holds += 1
        return lease is not None

    def release(self, key: _Key) -> None:
        """Takes a hold back; nothing happens if the lease has been ended since."""
        lease = self._leases.get(key)
        if lease is not None and lease.holds:
            lease.holds -= 1
            lease.end = self._clock() + lease.seconds

    def expired(self) -> list[_Key]:
        """Removes the leases that have run out, and returns their keys."""
        keys = [key for key, lease in self._leases.items() if self._seconds_left(lease) == 0]
        for key in keys:
            del self._leases[key]
        return keys

    def next_expiry(self) -> float | None:
        """Returns in how many seconds the next lease runs out, should none be renewed; `None` if none will."""
        return min((self._seconds_left(lease) for lease in self._leases.values() if not lease.holds), default=None)

    def seconds_left(self, key: _Key) -> float:
        """Returns how long a lease still lasts: all its time while it is held, and 0 if there is none."""
        lease = self._leases.get(key)
        return 0.0 if lease is None else self._seconds_left(lease)

    def idle_seconds(self, key: _Key) -> float:
        """Returns for how long a lease has not been renewed: 0 while it is held, or if there is none."""
        lease = self._leases.get(key)
        return 0.0 if lease is None or lease.holds else lease.seconds - (lease.end - self._clock())

    def _alive(self, key: _Key) -> _Lease | None:
        lease = self._leases.get(key)
        return None if lease is None or self._seconds_left(lease) == 0 else lease

    def _seconds_left(self, lease: _Lease) -> float:
        return lease.seconds if lease.holds else max(0.0, lease.end - self._clock())

    def __contains__(self, key: _Key) -> bool:
        return self._alive(key) is not None

    def __iter__(self) -> Iterator[_Key]:
        return iter(tuple(self._leases))

    def __len__(self) -> int:
        return len(self._leases)

    def __repr__(self) -> str:
        held = sum(1 for lease in self._leases.values() if lease.holds)
        return f"<Leases: {len(self)} of {self._max_leases}, {held} held>"
