"""Limits the number of running calls, shares the available slots fairly among clients, and counts ended calls.

A client is identified by its token or, without tokens, by its address.
"""

import asyncio
import functools
import hashlib
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias
from urllib.parse import unquote

from fedstack.service.host.limits import ServerLimits, exceeded

Task: TypeAlias = "asyncio.Task[object]"
# A client that waits for a slot retries within this time.
SECONDS = 60.0
NOBODY = ""
# gRPC's name for a peer ends in the peer's port, which differs between connections.
_PORT = re.compile(r"(?<=[\d\]]):\d+$")
# A household can use any number of IPv6 addresses within one network.
_NETWORK_BITS = 64


class FairShares:
    """Shares slots among peers: a peer gets at most half of the slots while other peers need some.

    A peer counts as needing slots while it has a slot, and for `seconds` seconds after it was refused a slot. If only
    one peer needs slots, it may take all of them, and keeps them. Once a second peer requests a slot, the first peer
    gets no new slots beyond its half.

    Args:
      most: The number of slots.
      seconds: How long a peer counts as needing slots after a refusal.
      clock: Returns the time in seconds.
    """

    def __init__(self, most: int, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.share = (most + 1) // 2
        self._seconds = seconds
        self._clock = clock
        self._held: dict[str, int] = {}
        self._taken = 0
        # The latest refusals of two peers. Two are enough: for any peer, at least one refusal is of a different peer.
        self._refused: dict[str, float] = {}

    def __len__(self) -> int:
        return self._taken

    def take(self, peer: str) -> bool:
        """Takes a slot for a peer, and returns whether a slot was available.

        Args:
          peer: The peer; `NOBODY` for peers that cannot be distinguished, which may occupy all slots together.
        """
        held = self._held.get(peer, 0)
        over = held >= self.share and peer != NOBODY
        if self._taken >= self.most or (over and self._others_are_there(peer, held)):
            self._refuse(peer)
            return False
        self._held[peer] = held + 1
        self._taken += 1
        return True

    def give_back(self, peer: str) -> None:
        """Returns a slot that the peer has taken."""
        held = self._held[peer] - 1
        if held:
            self._held[peer] = held
        else:
            del self._held[peer]
        self._taken -= 1

    @property
    def refused(self) -> str:
        """Describes a request that would be refused now, for the error message."""
        full = self._taken >= self.most
        return "one more" if full else "one more from a client that has half of them while other clients need some"

    def debtor(self, peer: str) -> str | None:
        """Returns a client that has more than half of the slots, if `peer` has fewer than half; otherwise `None`."""
        if self._held.get(peer, 0) >= self.share:
            return None
        return next((other for other, held in self._held.items() if held > self.share and other != NOBODY), None)

    def _others_are_there(self, peer: str, held: int) -> bool:
        since = self._clock() - self._seconds
        return self._taken > held or any(other != peer and when > since for other, when in self._refused.items())

    def _refuse(self, peer: str) -> None:
        self._refused.pop(peer, None)
        self._refused[peer] = self._clock()
        if len(self._refused) > 2:
            del self._refused[next(iter(self._refused))]

    def __repr__(self) -> str:
        return f"<FairShares: {self._taken} of {self.most} places, {len(self._held)} peers>"


def host_of(peer: str) -> str:
    """Returns gRPC's name for a peer (`ipv4:10.0.0.1:50000`) without the port."""
    return _PORT.sub("", unquote(peer))


@functools.lru_cache(maxsize=4096)
def caller_at(peer: str) -> str:
    """Returns the name of a caller, derived from its address; `NOBODY` if all callers share the address."""
    kind, _, host = host_of(peer).partition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return NOBODY
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            network = ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False)
            return NOBODY if address.is_loopback else f"{kind}:{network}"
        address = address.ipv4_mapped
    return NOBODY if address.is_loopback else f"ipv4:{address}"


def caller_with(token: str) -> str:
    """Returns the name of the clients that use a token. The name does not reveal the token."""
    return f"token:{hashlib.sha256(token.encode()).hexdigest()[:16]}"


class CallTable:
    """The running calls of a server. Each call occupies one of a limited number of slots.

    Args:
      limits: The limits of the server.
      limit: The name of the field in `limits` that contains the number of slots.
      patience: How many seconds a call that has sent nothing yet keeps its slot if other calls need a slot.
    """

    def __init__(self, limits: ServerLimits, limit: str, patience: float) -> None:
        self.running: dict[Task, str] = {}
        self.silent: dict[Task, float] = {}  # start times, oldest first
        self._limits = limits
        self._limit = limit
        self._patience = patience
        self._shares = FairShares(getattr(limits, limit))
        self._gave_way = set[Task]()

    def add(self, task: Task, caller: str) -> None:
        """Takes a slot for a call. The slot is freed when the task is done, after the outcome has been sent.

        Raises:
          ResourceLimitError: If no slot is free.
        """
        if not self._shares.take(caller) and not (self._make_room() and self._shares.take(caller)):
            raise exceeded(self._limits, self._limit, self._shares.refused, "retry when other calls have ended")
        self.running[task] = caller
        task.add_done_callback(self._remove)

    def hand_over(self, task: Task, successor: Task) -> None:
        """Transfers the slot of a call to the task that continues the call."""
        caller = self.running.pop(task, None)
        if caller is not None:
            self.running[successor] = caller
            successor.add_done_callback(self._remove)

    def gave_way(self, task: Task) -> bool:
        """Returns whether a call was cancelled because it had sent nothing and another call needed its slot."""
        return task in self._gave_way

    def _make_room(self) -> bool:
        for task, since in self.silent.items():
            if time.monotonic() - since < self._patience:
                return False
            del self.silent[task]
            self._remove(task)
            self._gave_way.add(task)
            task.add_done_callback(self._gave_way.discard)
            task.cancel()
            return True
        return False

    def _remove(self, task: Task) -> None:
        caller = self.running.pop(task, None)
        if caller is not None:
            self._shares.give_back(caller)


class CallCounts:
    """Counts ended calls by method and status code.

    Only the server's own methods are counted by name, so a client cannot grow the table by calling unknown methods.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, method: str, code: str) -> None:
        """Counts one call of `method`, such as `grpc.health.v1.Health/Check`, that ended with `code`, such as `OK`."""
        self._counts[method, code] += 1

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yields the method, the code and the count of each entry, sorted by method and code."""
        for (method, code), count in sorted(self._counts.items()):
            yield method, code, count

    def __repr__(self) -> str:
        return f"CallCounts({dict(self._counts)})"
