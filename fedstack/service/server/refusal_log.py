"""Logs who was refused, and not so often that whoever is can fill a disk."""

import logging
import time
from collections.abc import Callable

from fedstack.service.server.callers import host_of

_logger = logging.getLogger(__name__)
_SECONDS = 60.0
_MOST_PEERS = 1000


class RefusalLog:
    """Warns of calls without a token of the server, of each peer once a minute.

    Args:
      clock: Tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}  # by peer, the oldest first
        self._counts: dict[str, int] = {}

    def refused(self, peer: str, *, had_token: bool) -> None:
        """Takes note of a call.

        Args:
          peer: Who called, as gRPC says it: `ipv4:10.0.0.1:50000`.
          had_token: Whether it brought any token. The token itself is not logged: it may be nearly right.
        """
        host = host_of(peer)
        now = self._clock()
        since = self._since.get(host)
        if since is not None and now - since < _SECONDS:
            self._counts[host] += 1
            return
        before = self._counts.pop(host, 0)
        self._since.pop(host, None)
        while len(self._since) >= _MOST_PEERS:
            oldest = next(iter(self._since))
            del self._since[oldest], self._counts[oldest]
        self._since[host], self._counts[host] = now, 0
        _logger.warning(
            "Refused a call from %s, which brought %s%s; more of them within %g s are counted only",
            host or "an unknown peer",
            "a token that is none of this server's" if had_token else "no token",
            f" ({before} more since the last line)" if before else "",
            _SECONDS,
        )

    def __repr__(self) -> str:
        return f"<RefusalLog of {len(self._since)} peers>"
