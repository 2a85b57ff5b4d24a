"""Gives out the places of a table, and sees to it that one client does not take all of them from others.

A client is known by its token, or else by the address that it calls from.
"""

import functools
import hashlib
import ipaddress
import re
import time
from collections.abc import Callable
from urllib.parse import unquote

# A client that waits for a place tries again within this time.
SECONDS = 60.0
NOBODY = ""
# What gRPC calls a peer ends in the port that it dials from, and each connection has another one.
_PORT = re.compile(r"(?<=[\d\]]):\d+$")
# Of IPv6 a household has as many addresses as it likes.
_NETWORK_BITS = 64


class FairShares:
    """The places of a table, of which one peer has at most half while others are there.

    Another peer is there while it has a place, and for a while after it was refused one. So who is alone may take all
    places, and keeps them; but it gets no new ones beyond its half once another client has asked.

    Args:
      most: The number of places.
      seconds: How long a peer that was refused counts as there.
      clock: Tells the time in seconds.
    """

    def __init__(self, most: int, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.share = (most + 1) // 2
        self._seconds = seconds
        self._clock = clock
        self._held: dict[str, int] = {}
        self._taken = 0
        # When peers were refused last: the latest two, since of any peer one of them is another.
        self._refused: dict[str, float] = {}

    def __len__(self) -> int:
        return self._taken

    def take(self, peer: str) -> bool:
        """Takes a place for a peer; tells whether there is one.

        Args:
          peer: Who asks; `NOBODY` where peers cannot be distinguished; together they may have all places.
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
        """What to say of the one that was refused just now."""
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
    """Returns the name of a caller by its address; `NOBODY` where all callers share it."""
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
    """Returns the name of the clients that have a token; it does not show the token."""
    return f"token:{hashlib.sha256(token.encode()).hexdigest()[:16]}"
