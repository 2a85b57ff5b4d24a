"""Decides how often, and after which pauses, something that failed with a retryable error is tried again."""

import random
import time
from collections.abc import Callable, Iterator

import attrs

from fedstack.computations.values.number_checks import check_number, check_whole_number


def _not_negative(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    check_number(attribute.name, value)


def _none_or_not_negative(_: object, attribute: "attrs.Attribute[float | None]", value: float | None) -> None:
    if value is not None:
        check_number(attribute.name, value, endless=True)


def _at_least_one(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    check_whole_number(attribute.name, value, 1)


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often to try, and how long to wait in between.

    Pauses grow exponentially and are drawn at random between zero and their bound ("full jitter"), so that many callers
    do not come back at once.

    Attributes:
      attempts: The most tries, the first one included.
      first_pause: The bound of the first pause, in seconds.
      longest_pause: The bound of any pause, in seconds.
      multiplier: By how much the bound grows each time.
      longest_total: How long after the beginning of the first try another one may begin, in seconds; `None` for any
        time.
    """

    attempts: int = attrs.field(default=5, validator=_at_least_one)
    first_pause: float = attrs.field(default=0.05, validator=_not_negative)
    longest_pause: float = attrs.field(default=10.0, validator=_not_negative)
    multiplier: float = attrs.field(default=2.0, validator=_not_negative)
    longest_total: float | None = attrs.field(default=None, validator=_none_or_not_negative)

    @classmethod
    def none(cls) -> "RetryPolicy":
        """Returns the policy of a single try."""
        return cls(attempts=1)

    @property
    def limits(self) -> str:
        """Says for messages how much may be tried, as in `5 attempts`."""
        attempts = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return attempts if self.longest_total is None else f"{attempts} and {self.longest_total:g} seconds"

    def pauses(self, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
        """Yields the pause before each further try, in seconds; one fewer than there are attempts.

        Args:
          clock: Tells the time in seconds. The time of the first try runs from this call on.
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
