"""Keeps leases, which run out unless they are renewed in time."""

import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

import attrs

from fedstack.errors import InvalidValueError, ResourceLimitError

_Key = TypeVar("_Key", bound=Hashable)


@attrs.define
class _Lease:
    """A lease: its duration and, unless it is held, its expiry, in seconds of the clock; and its number of holds."""

    seconds: float
    end: float
    holds: int = 0


class Leases(Generic[_Key]):
    """Leases by key. A lease ends when it is ended, or when it runs out.

    A held lease does not run out, and restarts when its last hold is released: long work is a sign of life of its
    requester. A lease that has run out cannot be renewed, even if `expired` has not been called yet.

    Args:
      max_leases: The most leases at a time.
      clock: Returns the time in seconds.
    """

    def __init__(self, max_leases: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_leases = max_leases
        self._clock = clock
        self._leases: dict[_Key, _Lease] = {}

    def open(self, key: _Key, seconds: float) -> None:
        """Starts a lease.

        Args:
          key: The key of the lease.
          seconds: How long it lasts from now, and from each renewal.

        Raises:
          ResourceLimitError: If there are too many leases.
          InvalidValueError: If the key has a lease, or `seconds` is not positive.
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
        """Restarts a lease; returns whether there is one, since a lease that has ended cannot be renewed."""
        lease = self._alive(key)
        if lease is not None:
            lease.end = self._clock() + lease.seconds
        return lease is not None

    def end(self, key: _Key) -> None:
        """Ends a lease, if there is one."""
        self._leases.pop(key, None)

    def hold(self, key: _Key) -> bool:
        """Keeps a lease from running out until every hold is released; returns whether there is one."""
        lease = self._alive(key)
        if lease is not None:
            lease.holds += 1
        return lease is not None

    def release(self, key: _Key) -> None:
        """Releases a hold; does nothing if the lease has been ended since."""
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
        """Returns in how many seconds the next lease runs out if none is renewed; `None` if none will."""
        return min((self._seconds_left(lease) for lease in self._leases.values() if not lease.holds), default=None)

    def seconds_left(self, key: _Key) -> float:
        """Returns how many seconds a lease still lasts: its full duration while it is held, 0 if there is none."""
        lease = self._leases.get(key)
        return 0.0 if lease is None else self._seconds_left(lease)

    def idle_seconds(self, key: _Key) -> float:
        """Returns for how many seconds a lease has not been renewed: 0 while it is held, or if there is none."""
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
