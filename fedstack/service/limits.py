"""Says how much a service lets its clients have. Every limit ends in a status that names it."""

import attrs

from fedstack.transport.frames import Chunking


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
    """

    max_sessions: int = 1000
    max_values: int = 100_000
    max_session_bytes: int = 64 << 30
    max_value_bytes: int = 16 << 30
    max_clients: int = 1_000_000
    max_steps: int = 100_000
    lease_seconds: float = 60.0
    plain_lease_seconds: float = 3600.0
    heartbeat_seconds: float = 5.0
    chunking: Chunking = attrs.field(factory=Chunking)
