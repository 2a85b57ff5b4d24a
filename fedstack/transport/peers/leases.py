"""Manages leases, which expire unless they are renewed in time."""

import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

import attrs

from fedstack.errors import InvalidValueError, ResourceLimitError

_Key = TypeVar("_Key", bound=Hashable)


@attrs.define
class _Lease:
    """The state of one lease.

    Attributes:
      seconds: The duration of the lease.
      end: The clock time, in seconds, at which the lease expires unless it is held.
      holds: The number of holds.
    """

    seconds: float
    end: float
    holds: int = 0


class Leases(Generic[_Key]):
    """A table of leases by key. A lease ends when `end` is called or when it expires.

    A held lease does not expire, because running work shows that the client is alive. The lease restarts when its last
    hold is released. An expired lease cannot be renewed, even if `expired` has not been called yet.

    Args:
      max_leases: The maximum number of concurrent leases.
      clock: A function that returns the time in seconds.
    """

    def __init__(self, max_leases: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_leases = max_leases
        self._clock = clock
        self._leases: dict[_Key, _Lease] = {}

    def open(self, key: _Key, seconds: float) -> None:
        """Starts a lease.

        Args:
          key: The key of the lease.
          seconds: The duration of the lease, which restarts with each renewal.

        Raises:
          ResourceLimitError: If the table already contains the maximum number of leases.
          InvalidValueError: If the key already has a lease, or `seconds` is not positive.
        """
        if not seconds > 0:
            raise InvalidValueError(f"Expected a lease duration of more than 0 seconds, found {seconds}")
        if key in self._leases:
            raise InvalidValueError(f"The key {key!r} already has a lease; renew or end that lease")
        if len(self._leases) >= self._max_leases:
            raise ResourceLimitError(
                f"The maximum number of concurrent leases ({self._max_leases}) is reached; end other "
                "leases, or let them expire"
            )
        self._leases[key] = _Lease(seconds, self._clock() + seconds)

    def renew(self, key: _Key) -> bool:
        """Restarts a lease. Returns whether the lease exists; a lease that has ended or expired cannot be renewed."""
        lease = self._alive(key)
        if lease is not None:
            lease.end = self._clock() + lease.seconds
        return lease is not None

    def end(self, key: _Key) -> None:
        """Ends a lease. Does nothing if the key has no lease."""
        self._leases.pop(key, None)

    def hold(self, key: _Key) -> bool:
        """Keeps a lease from expiring until all holds are released. Returns whether the lease exists."""
        lease = self._alive(key)
        if lease is not None:
            lease.holds += 1
        return lease is not None

    def release(self, key: _Key) -> None:
        """Releases a hold. Does nothing if the lease has been ended in the meantime."""
        lease = self._leases.get(key)
        if lease is not None and lease.holds:
            lease.holds -= 1
            lease.end = self._clock() + lease.seconds

    def expired(self) -> list[_Key]:
        """Removes the expired leases, and returns their keys."""
        keys = [key for key, lease in self._leases.items() if self._seconds_left(lease) == 0]
        for key in keys:
            del self._leases[key]
        return keys

    def next_expiry(self) -> float | None:
        """Returns the seconds until the next lease expires if none is renewed; `None` if no lease can expire."""
        return min((self._seconds_left(lease) for lease in self._leases.values() if not lease.holds), default=None)

    def seconds_left(self, key: _Key) -> float:
        """Returns the seconds until a lease expires: its full duration while it is held, 0 if the key has no lease."""
        lease = self._leases.get(key)
        return 0.0 if lease is None else self._seconds_left(lease)

    def idle_seconds(self, key: _Key) -> float:
        """Returns the seconds since a lease was last renewed: 0 while it is held, or if the key has no lease."""
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
