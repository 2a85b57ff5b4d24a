"""Gives out the places of a table, and sees to it that one client does not take all of them from others.

A client is known by its token, or else by the address that it calls from.

Holds the calls that run, gives each its place among those of other clients, and counts those that have ended.
"""

import asyncio
import functools
import hashlib
import ipaddress
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from fedstack.service.host.call_stream import Task
from fedstack.service.host.limits import ServerLimits, exceeded

# A client that waits for a place tries again within this time.
SECONDS = 60.0
NOBODY = ""
# What gRPC calls a peer ends in the port that it dials from, and each connection has another one.
_PORT = re.compile(r"(?<=[\d\]]):\d+$")
# Of IPv6 a household has as many addresses as it likes.
_NETWORK_BITS = 64


class FairShares:
    """Shares the places of a table: one peer has at most half of them while others need places.

    Another peer needs places while it has one, and for a while after it was refused one. So a peer that is alone may
    take all places, and keeps them; but once another peer has asked, it gets no new ones beyond its half.

    Args:
      most: The number of places.
      seconds: How long a refused peer counts.
      clock: Returns the time in seconds.
    """

    def __init__(self, most: int, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.share = (most + 1) // 2
        self._seconds = seconds
        self._clock = clock
        self._held: dict[str, int] = {}
        self._taken = 0
        # The times of the latest refusals of two peers: for any peer, one of the two is another peer.
        self._refused: dict[str, float] = {}

    def __len__(self) -> int:
        return self._taken

    def take(self, peer: str) -> bool:
        """Takes a place for a peer; returns whether there was one.

        Args:
          peer: The peer; `NOBODY` for peers that cannot be distinguished, which may have all places together.
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
        """Gives back a place that the peer has taken."""
        held = self._held[peer] - 1
        if held:
            self._held[peer] = held
        else:
            del self._held[peer]
        self._taken -= 1

    @property
    def refused(self) -> str:
        """Describes the request that was refused last."""
        full = self._taken >= self.most
        return "one more" if full else "one more for a client that has half of them while others are there"

    def debtor(self, peer: str) -> str | None:
        """Returns a client that has more than its half while a peer with less is refused, if there is one."""
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
    """Returns what gRPC calls a peer (`ipv4:10.0.0.1:50000`) without the port."""
    return _PORT.sub("", unquote(peer))


@functools.lru_cache(maxsize=4096)
def caller_at(peer: str) -> str:
    """Returns the name of a caller by its address; `NOBODY` if all callers share it."""
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
    """Returns the name of the clients with a token, which does not reveal the token."""
    return f"token:{hashlib.sha256(token.encode()).hexdigest()[:16]}"


# Messages up to this size neither wait nor count: renewals of leases, status requests, closing calls.
SMALL_BYTES = 64 * 1024


class CallTable:
    """The running calls of a server, each in one of a limited number of places.

    Args:
      limits: The limits of the server.
      limit: The field with the number of places.
      patience: How long a call that has sent nothing yet keeps its place, in seconds.
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
        """Takes a place for a call until its task is done, which is after gRPC has sent the outcome.

        Raises:
          ResourceLimitError: If no place is free.
        """
        if not self._shares.take(caller) and not (self._make_room() and self._shares.take(caller)):
            raise exceeded(self._limits, self._limit, self._shares.refused, "call again when others are done")
        self.running[task] = caller
        task.add_done_callback(self._remove)

    def hand_over(self, task: Task, successor: Task) -> None:
        """Passes the place of a call to the task that continues it."""
        caller = self.running.pop(task, None)
        if caller is not None:
            self.running[successor] = caller
            successor.add_done_callback(self._remove)

    def gave_way(self, task: Task) -> bool:
        """Returns whether a call was cancelled because it had sent nothing and another call needed its place."""
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


class MessageRoom:
    """Limits the memory of messages, in bytes. A message without room waits for its turn, and gives up after a while.

    A message that is larger than the limit goes alone. Waiting messages are in memory, too, so the limit also holds for
    their total.

    Args:
      most: The limit.
      seconds: How long a message waits.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._waiting_bytes = 0

    async def take(self, size: int) -> bool:
        """Takes room for a message, at once or after a while; returns whether there was any."""
        if size <= SMALL_BYTES:
            return True
        if not self._waiting and self._has_room(size):
            self._taken += size
            return True
        if self._waiting and self._waiting_bytes + size > self._most:
            return False
        turn = asyncio.get_running_loop().create_future(), size
        self._waiting.append(turn)
        self._waiting_bytes += size
        try:
            done, _ = await asyncio.wait([turn[0]], timeout=self._seconds)
        except asyncio.CancelledError:
            self._leave(turn)
            if turn[0].done():
                self.give_back(size)
            raise
        if not done:
            self._leave(turn)
        return bool(done)

    def give_back(self, size: int) -> None:
        """Gives back the room of a message that took it."""
        if size > SMALL_BYTES:
            self._taken -= size
            self._admit()

    def _has_room(self, size: int) -> bool:
        return self._taken + size <= self._most or not self._taken

    def _leave(self, turn: tuple["asyncio.Future[None]", int]) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
            self._waiting_bytes -= turn[1]
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][1]):
            turn, size = self._waiting.popleft()
            self._waiting_bytes -= size
            self._taken += size
            turn.set_result(None)

    def __repr__(self) -> str:
        return f"<MessageRoom: {self._taken} of {self._most} bytes taken, {len(self._waiting)} messages wait>"


class CallCounts:
    """How many calls ended, by method and by code.

    Only methods that the server has are counted by name, so a client cannot make the table grow.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, method: str, code: str) -> None:
        """Counts one call of `method`, such as `grpc.health.v1.Health/Check`, that ended with `code`, such as `OK`."""
        self._counts[method, code] += 1

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yields method, code and count, in the order of the names."""
        for (method, code), count in sorted(self._counts.items()):
            yield method, code, count

    def __repr__(self) -> str:
        return f"CallCounts({dict(self._counts)})"
