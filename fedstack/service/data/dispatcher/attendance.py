"""Keeps track of the registered workers, which must have a permitted address and must report regularly."""

from collections.abc import Callable, Mapping, Sequence

import attrs

from fedstack.errors import InvalidValueError, MembershipError
from fedstack.foundations.draws import draw_id
from fedstack.proto.data_service_pb2 import DataWorkerAddress
from fedstack.service.host.limits import DispatcherLimits, exceeded
from fedstack.service.host.listening import is_local
from fedstack.transport.peers.leases import Leases
from fedstack.transport.wire.addresses import parse_target

ANY_PORT = "%port%"
_MAX_NAME_BYTES = 1000


@attrs.frozen(kw_only=True)
class Times:
    """The timeouts and intervals of a dispatcher, in seconds.

    Attributes:
      worker: The time without a message after which a worker is considered lost.
      consumer: The time without a message after which a consumer is considered lost.
      check: The interval between checks for abandoned passes.
      idle: The time for which a pass without consumers is kept.
      resume: The time for which a pass without consumers is kept if its consumers may resume it.
    """

    worker: float = 5.0
    consumer: float = 10.0
    check: float = 60.0
    idle: float = 300.0
    resume: float = 24 * 3600.0


class Attendance:
    """The workers that are registered with a dispatcher.

    Args:
      known: The addresses of the workers that were registered before the dispatcher was started, by worker id. These
        workers must report again within one lease.
      allowed: The addresses of workers that may register, as `host`, `host:port` or `host:%port%`; `None` for any.
      limits: The limits of the dispatcher, which include the maximum number of workers.
      lease_seconds: The maximum time between two reports of a worker, in seconds.
      clock: Returns the time in seconds.

    Attributes:
      version: The version of the list of workers, which changes whenever the list changes.
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
        """The addresses of the workers, by worker id. The mapping is replaced when the workers change."""
        return self._workers

    @property
    def assigned(self) -> Sequence[bytes]:
        """The id of the worker at each configured address; an empty id if no worker is registered at the address."""
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
        """Records that a worker has reported, and returns whether the list of workers has changed.

        Raises:
          MembershipError: If the worker's address is not allowed.
          InvalidValueError: If the address or the id is invalid.
          ResourceLimitError: If there are too many workers.
        """
        if self._leases.renew(worker) and self._workers.get(worker) == address:
            return False
        self._check(worker, address)
        # A new worker replaces the previous worker at the same address.
        others = {w: a for w, a in self._workers.items() if a != address and w != worker}
        if len(others) >= self._limits.max_data_workers:
            raise exceeded(self._limits, "max_data_workers")
        self._set({**others, worker: address})
        return True

    def leave(self, worker: bytes) -> bool:
        """Removes a worker that is leaving, and returns whether the list of workers has changed."""
        return self._without({worker})

    def expire(self) -> Sequence[str]:
        """Removes the workers whose leases have expired, and returns their addresses."""
        gone = set(self._leases.expired())
        lost = [self._workers[worker] for worker in gone]
        self._without(gone)
        return lost

    def excuse(self) -> None:
        """Renews expired leases, because the workers could not report while the dispatcher was stalled."""
        for worker in self._leases.expired():
            self._leases.open(worker, self.lease_seconds)

    def next_expiry(self) -> float | None:
        """Returns the number of seconds until the next lease expires, or `None` if there are no leases."""
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
                f"Expected a worker id of 1 to {_MAX_NAME_BYTES} bytes and an address of at most the same length, "
                f"found an id of {len(worker)} bytes and an address of {len(address)} bytes"
            )
        place = _without_scheme(address)
        if not is_local(address):
            parse_target(address)
        if self._allowed is not None and not any(_fits(place, allowed) for allowed in self._allowed):
            raise MembershipError(
                "Expected a worker at one of the dispatcher's worker_addresses "
                f"({', '.join(self._allowed) or 'an empty list'}), found a worker at {address}; add the address to "
                "worker_addresses"
            )


def addresses_of(workers: Mapping[bytes, str]) -> Sequence[DataWorkerAddress]:
    """Converts workers to the form used in messages."""
    return [DataWorkerAddress(worker=worker, address=address) for worker, address in workers.items()]


def _new_version() -> int:
    """Returns a random version, which neither this dispatcher nor an earlier dispatcher at its address has used."""
    return int.from_bytes(draw_id(8), "big") >> 1


def _without_scheme(address: str) -> str:
    return address.partition("://")[2] or address


def _fits(place: str, allowed: str) -> bool:
    """Returns whether an address matches an allowed address. A host without a port allows all ports of the host."""
    host = allowed.removesuffix(f":{ANY_PORT}")
    return place == allowed or place.rpartition(":")[0] == host
