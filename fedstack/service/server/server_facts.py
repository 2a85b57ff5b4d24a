"""What a server knows and its services report: its calls, whom it lets in, whether it is about to stop."""

import time
from collections.abc import Callable, Sequence

import attrs

from fedstack.service.server.calls.call_counts import CallCounts
from fedstack.service.server.stall_meter import StallCounts


class ServerFacts:
    """What there is to report of a server; the services are given it (`Service.attach`).

    Args:
      asks_for_token: Whether calls must bring a token.
      asks_for_certificate: Whether callers must show a certificate.
      calls: Counts the calls that have ended.
      stalls: How often its loop stood still.
      limits: Its own limits: tables of them.
      clock: Tells the time in seconds.

    Attributes:
      target: The address to dial from this machine; empty before the server listens.
    """

    def __init__(
        self,
        *,
        asks_for_token: bool,
        asks_for_certificate: bool = False,
        calls: CallCounts | None = None,
        stalls: StallCounts | None = None,
        limits: Sequence[attrs.AttrsInstance] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asks_for_token = asks_for_token
        self.asks_for_certificate = asks_for_certificate
        self.calls = calls or CallCounts()
        self.limits = tuple(limits)
        self.target = ""
        self._stalls = stalls or StallCounts()
        self._clock = clock
        self._end: float | None = None

    @property
    def stalls(self) -> int:
        """How often the loop stood still."""
        return self._stalls.stalls

    @property
    def longest_stall_seconds(self) -> float:
        """For how long it did at most."""
        return self._stalls.longest_seconds

    def stops_within(self, seconds: float) -> None:
        """Takes note that running calls have so many seconds; of several times the shortest counts."""
        end = self._clock() + seconds
        self._end = end if self._end is None else min(end, self._end)

    @property
    def seconds_until_stop(self) -> float | None:
        """How long running calls have at most, in seconds; `None` if the server is not about to stop."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    def __repr__(self) -> str:
        left = self.seconds_until_stop
        return f"<ServerFacts {'with' if self.asks_for_token else 'without'} tokens, {left} s until it stops>"
