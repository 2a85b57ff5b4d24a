"""Defines how often, and after which pauses, work that failed with a retryable error is retried."""

import time
from collections.abc import Callable, Iterator

import attrs
from attrs.validators import optional

from fedstack.foundations.draws import draw_seconds
from fedstack.foundations.number_checks import check_bool, number_validator, whole_number_validator
from fedstack.foundations.public_names import refuses_others


@refuses_others
@attrs.frozen(kw_only=True)
class RetryPolicy:
    """A policy for retries: the number of attempts, and the pauses between them.

    Each pause is random, between zero and a bound that grows exponentially ("full jitter"), so that many callers do not
    retry at the same time.

    Attributes:
      attempts: The maximum number of attempts, including the first.
      first_pause: The upper bound of the first pause, in seconds.
      longest_pause: The upper bound of all pauses, in seconds.
      multiplier: The factor by which the bound grows after each pause.
      longest_total: The time, in seconds from the start of the first attempt, after which no attempt starts; `None` for
        no limit.
      hedging: Whether clients of a worker that is far behind, or does not respond, may also run on an idle worker. The
        first result counts, and the other run is stopped before its next client. Without retries, no client runs twice.
    """

    attempts: int = attrs.field(default=5, validator=whole_number_validator(1))
    first_pause: float = attrs.field(default=0.05, validator=number_validator())
    longest_pause: float = attrs.field(default=10.0, validator=number_validator())
    multiplier: float = attrs.field(default=2.0, validator=number_validator())
    longest_total: float | None = attrs.field(default=None, validator=optional(number_validator(endless=True)))
    hedging: bool = attrs.field(default=True, converter=lambda value: check_bool("hedging", value))

    @classmethod
    def none(cls) -> "RetryPolicy":
        """Returns a policy without retries: a single attempt."""
        return cls(attempts=1)

    @property
    def limits(self) -> str:
        """The limits as text for error messages, such as `5 attempts`."""
        attempts = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return attempts if self.longest_total is None else f"{attempts} and {self.longest_total:g} seconds"

    def pause(self, retry: int) -> float:
        """Returns a random pause before a retry, in seconds.

        Args:
          retry: The number of the retry, counted from 1.
        """
        bound = min(self.first_pause, self.longest_pause)
        for _ in range(retry - 1):
            if bound in (0.0, self.longest_pause):
                break
            bound = min(bound * self.multiplier, self.longest_pause)
        return draw_seconds(bound, f"pause before retry {retry}")

    def pauses(self, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
        """Yields the pause before each retry, in seconds: at most one pause fewer than `attempts`.

        Args:
          clock: A function that returns the time in seconds. The first attempt is assumed to start when `pauses` is
            called.
        """
        return self._pauses(clock, clock())

    def _pauses(self, clock: Callable[[], float], began: float) -> Iterator[float]:
        for retry in range(1, self.attempts):
            pause = self.pause(retry)
            if self.ends_before(clock() + pause - began):
                return
            yield pause

    def ends_before(self, seconds: float) -> bool:
        """Returns whether no attempt may start at a time, in seconds from the start of the first attempt."""
        return self.longest_total is not None and seconds > self.longest_total
