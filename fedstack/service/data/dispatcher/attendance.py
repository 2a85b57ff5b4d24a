"""Knows which workers are there: those that say so often enough, and may."""

from collections.abc import Callable, Mapping, Sequence

import attrs

from fedstack.errors import InvalidValueError, MembershipError
from fedstack.foundations.drawn_ids import draw_id
from fedstack.proto.data_service_pb2 import DataWorkerAddress
from fedstack.service.host.limits import DispatcherLimits, exceeded
from fedstack.service.host.listening import is_local
from fedstack.transport.peers.leases import Leases
from fedstack.transport.wire.addresses import parse_target

ANY_PORT = "%port%"
_MAX_NAME_BYTES = 1000


@attrs.frozen(kw_only=True)
class Times:
    """How long a dispatcher waits for what, in seconds.

    Attributes:
      worker: The silence after which a worker is lost.
      consumer: The silence after which a consumer is lost.
      check: The time between two looks for passes that nobody wants any more.
      idle: For how long a pass without consumers is kept.
      resume: For how long one is kept whose consumers may resume.
    """

    worker: float = 5.0
    consumer: float = 10.0
    check: float = 60.0
    idle: float = 300.0
    resume: float = 24 * 3600.0


class Attendance:
    """The workers of a dispatcher.

    Args:
      known: Those that were there when it was last heard of, by their ids; they have a lease's time to say so.
      allowed: The addresses that may attend: `host`, `host:port` or `host:%port%`; `None` for any.
      limits: How many there may be.
      lease_seconds: How long one may be silent.
      clock: Tells the time in seconds.

    Attributes:
      version: Stands for the workers that there are; another one where they change.
    """

    def __init__(
        self,
        known: Mapping[bytes, str],
        allowed: Sequence[str] | None,
        limits: DispatcherLimits,
        lease_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._allowed = None if allowed is None else tuple(map(_without_scheme, allowed))
        self._limits = limits
        self.lease_seconds = lease_seconds
        self._leases: Leases[bytes] = Leases(limits.max_data_workers, clock)
        self._workers: dict[bytes, str] = dict(known)
        self.version = _new_version()
        for worker in self._workers:
            self._leases.open(worker, lease_seconds)

    @property
    def workers(self) -> Mapping[bytes, str]:
        """The addresses of workers, by their ids. It is replaced where they change."""
        return self._workers

    @property
    def assigned(self) -> Sequence[bytes]:
        """The worker at each of the addresses that are known beforehand; empty where none is there."""
        if not self._allowed:
            return ()
        left = sorted(self._workers.items(), key=lambda one: one[1])
        found: list[bytes] = []
        for allowed in self._allowed:
            fitting = [one for one in left if _fits(_without_scheme(one[1]), allowed)]
            left = [one for one in left if one not in fitting[:1]]
            found.append(fitting[0][0] if fitting else b"")
        return found

    def attend(self, worker: bytes, address: str) -> bool:
        """Says that a worker is there; returns whether that is news.

        Raises:
          MembershipError: If it is none of those that may attend.
          InvalidValueError: If the address is none.
          ResourceLimitError: If there are too many.
        """
        if self._leases.renew(worker) and self._workers.get(worker) == address:
            return False
        self._check(worker, address)
        # Where one serves no other does any more.
        others = {w: a for w, a in self._workers.items() if a != address and w != worker}
        if len(others) >= self._limits.max_data_workers:
            raise exceeded(self._limits, "max_data_workers")
        self._set({**others, worker: address})
        return True

    def leave(self, worker: bytes) -> bool:
        """Says that a worker is there no more; returns whether that is news."""
        return self._without({worker})

    def expire(self) -> Sequence[str]:
        """Removes the workers that have been silent for too long; returns their addresses."""
        gone = set(self._leases.expired())
        lost = [self._workers[worker] for worker in gone]
        self._without(gone)
        return lost

    def excuse(self) -> None:
        """Gives those another lease who have been silent for too long: nobody listened."""
        for worker in self._leases.expired():
            self._leases.open(worker, self.lease_seconds)

    def next_expiry(self) -> float | None:
        """Returns in how many seconds the next one will have been; `None` if there are none."""
        return self._leases.next_expiry()

    def _without(self, gone: set[bytes]) -> bool:
        left = {w: a for w, a in self._workers.items() if w not in gone}
        if len(left) == len(self._workers):
            return False
        self._set(left)
        return True

    def _set(self, workers: dict[bytes, str]) -> None:
        for worker in self._workers.keys() - workers.keys():
            self._leases.end(worker)
        for worker in workers.keys() - self._workers.keys():
            self._leases.open(worker, self.lease_seconds)
        self._workers = workers
        self.version = _new_version()

    def _check(self, worker: bytes, address: str) -> None:
        if not 0 < len(worker) <= _MAX_NAME_BYTES or len(address) > _MAX_NAME_BYTES:
            raise InvalidValueError(
                f"Expected an id and an address of a worker with at most {_MAX_NAME_BYTES} bytes each, found "
                f"{len(worker)} and {len(address)}"
            )
        place = _without_scheme(address)
        if not is_local(address):
            parse_target(address)
        if self._allowed is not None and not any(_fits(place, allowed) for allowed in self._allowed):
            raise MembershipError(
                f"Expected a worker at one of {', '.join(self._allowed) or 'no addresses'}, found {address}; "
                "add it to worker_addresses of the dispatcher"
            )


def addresses_of(workers: Mapping[bytes, str]) -> Sequence[DataWorkerAddress]:
    """Returns workers as messages have them."""
    return [DataWorkerAddress(worker=worker, address=address) for worker, address in workers.items()]


def _new_version() -> int:
    """Returns what no version was before, here or in a dispatcher that stood in this one's place."""
    return int.from_bytes(draw_id(8), "big") >> 1


def _without_scheme(address: str) -> str:
    return address.partition("://")[2] or address


def _fits(place: str, allowed: str) -> bool:
    """Returns whether an address is one that is allowed: a host stands for all its ports."""
    host = allowed.removesuffix(f":{ANY_PORT}")
    return place == allowed or place.rpartition(":")[0] == host
