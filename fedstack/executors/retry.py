"""Decides how often, and after which pauses, something that failed with a retryable error is tried again."""

import random
from collections.abc import Iterator
from typing import TypeVar

import attrs

from fedstack.errors import InvalidValueError

_Number = TypeVar("_Number", int, float)


def _not_negative(_: object, attribute: "attrs.Attribute[_Number]", value: _Number) -> None:
    if value < 0:
        raise InvalidValueError(f"Expected {attribute.name} of at least 0, found {value}")


def _at_least_one(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    if value < 1:
        raise InvalidValueError(f"Expected {attribute.name} of at least 1, found {value}")


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
    """

    attempts: int = attrs.field(default=5, validator=_at_least_one)
    first_pause: float = attrs.field(default=0.05, validator=_not_negative)
    longest_pause: float = attrs.field(default=10.0, validator=_not_negative)
    multiplier: float = attrs.field(default=2.0, validator=_not_negative)

    @classmethod
    def none(cls) -> "RetryPolicy":
        """Returns the policy of a single try."""
        return cls(attempts=1)

    def pauses(self) -> Iterator[float]:
        """Yields the pause before each further try, in seconds; one fewer than there are attempts."""
        bound = self.first_pause
        for _ in range(self.attempts - 1):
            yield random.uniform(0, bound)
            bound = min(bound * self.multiplier, self.longest_pause)
