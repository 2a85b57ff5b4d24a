"""Says how much a service lets its clients have. Every limit ends in a status that names it."""

from typing import Any

import attrs

from fedstack.computations.number_checks import MOST_BYTES, MOST_CLIENTS, check_number, check_whole_number
from fedstack.transport.frames import Chunking


def _count(default: int, most: int = MOST_BYTES) -> Any:
    """A field with a whole number of at least 1."""

    def check(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
        check_whole_number(attribute.name, value, 1, most)

    return attrs.field(default=default, validator=check)


def _seconds(default: float) -> Any:
    """A field with a length of time."""

    def check(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
        check_number(attribute.name, value, positive=True)

    return attrs.field(default=default, validator=check)


@attrs.frozen(kw_only=True)
class ServiceLimits:
    """The limits of an executor service.

    Attributes:
      max_sessions: Sessions at the same time.
      max_values: Values in one session.
      max_session_bytes: Bytes of values that a client has put into one session.
      max_value_bytes: Bytes of arrays in one value or phase.
      max_clients: Clients in one session or phase.
      max_steps: Steps of a computation once its calls are unfolded; nothing else goes on while they are counted.
      lease_seconds: The longest that a client with a lease may be silent.
      plain_lease_seconds: How long a client without fedstack's extensions, which renews nothing, may be silent.
      heartbeat_seconds: How often a long call shows that it is alive.
      chunking: What is sent back in chunks.

    Raises:
      InvalidValueError: If a number is out of its range.
    """

    max_sessions: int = _count(1000)
    max_values: int = _count(100_000)
    max_session_bytes: int = _count(64 << 30)
    max_value_bytes: int = _count(16 << 30)
    max_clients: int = _count(1_000_000, MOST_CLIENTS)
    max_steps: int = _count(100_000)
    lease_seconds: float = _seconds(60.0)
    plain_lease_seconds: float = _seconds(3600.0)
    heartbeat_seconds: float = _seconds(5.0)
    chunking: Chunking = attrs.field(factory=Chunking)
