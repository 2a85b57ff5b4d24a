"""Decides how often, and after which pauses, work that failed with a retryable error is retried."""

import random
import time
from collections.abc import Callable, Iterator

import attrs
from attrs.validators import optional

from fedstack.foundations.number_checks import number_validator, whole_number_validator


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often to try, and how long to wait between tries.

    Pauses are drawn at random between zero and a bound that grows exponentially ("full jitter"), so that many callers
    do not retry at once.

    Attributes:
      attempts: The most tries, including the first.
      first_pause: The bound of the first pause, in seconds.
      longest_pause: The bound of any pause, in seconds.
      multiplier: The factor by which the bound grows each time.
      longest_total: How long after the beginning of the first try another try may begin, in seconds; `None` for no
        limit.
    """

    attempts: int = attrs.field(default=5, validator=whole_number_validator(1))
    first_pause: float = attrs.field(default=0.05, validator=number_validator())
    longest_pause: float = attrs.field(default=10.0, validator=number_validator())
    multiplier: float = attrs.field(default=2.0, validator=number_validator())
    longest_total: float | None = attrs.field(default=None, validator=optional(number_validator(endless=True)))

    @classmethod
    def none(cls) -> "RetryPolicy":
        """Returns the policy of a single try."""
        return cls(attempts=1)

    @property
    def limits(self) -> str:
        """Returns the limits as text for messages, as in `5 attempts`."""
        attempts = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return attempts if self.longest_total is None else f"{attempts} and {self.longest_total:g} seconds"

    def pauses(self, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
        """Yields the pause before each further try, in seconds; one fewer than there are attempts.

        Args:
          clock: Returns the time in seconds. The first try counts as begun with this call.
        """
        return self._pauses(clock, clock())

    def _pauses(self, clock: Callable[[], float], began: float) -> Iterator[float]:
        bound = min(self.first_pause, self.longest_pause)
        for _ in range(self.attempts - 1):
            pause = random.uniform(0, bound)
            if self.longest_total is not None and clock() + pause - began > self.longest_total:
                return
            yield pause
            bound = min(bound * self.multiplier, self.longest_pause)
