"""Issues tickets, with which a client that was let in over gRPC may open a stream."""

import hmac
import secrets
import time
from collections.abc import Callable

import attrs

_SECONDS = 10.0
_MOST_TICKETS = 10_000
_TICKET_BYTES = 32


@attrs.frozen
class StreamOwner:
    """As whom a stream acts.

    Attributes:
      host: The host of the caller in gRPC's notation, without the port.
      token: The token with which the caller was let in, if any.
      certificate: A digest of the caller's certificate; empty without one.
    """

    host: str
    token: str | None = None
    certificate: bytes = attrs.field(default=b"", repr=False)


class Tickets:
    """The tickets that have been issued and not used. Each can be used once, within seconds, from the same host.

    Args:
      clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By the first half of the ticket. The second half is compared in constant time.
        self._issued: dict[bytes, tuple[bytes, float, StreamOwner]] = {}

    def issue(self, owner: StreamOwner) -> bytes:
        """Returns a new ticket. If too many are unused, the oldest is void."""
        now = self._clock()
        while self._issued:
            name, (_, until, _) = next(iter(self._issued.items()))
            if until > now and len(self._issued) < _MOST_TICKETS:
                break
            del self._issued[name]
        ticket = secrets.token_bytes(_TICKET_BYTES)
        name, secret = ticket[: _TICKET_BYTES // 2], ticket[_TICKET_BYTES // 2 :]
        self._issued[name] = secret, now + _SECONDS, owner
        return ticket

    def use(self, ticket: bytes, host: str, certificate: bytes) -> StreamOwner | None:
        """Returns as whom the bearer of a ticket acts, and voids the ticket.

        Args:
          ticket: The ticket.
          host: The host from which the stream is opened.
          certificate: A digest of the certificate with which the stream is opened; empty without one.

        Returns:
          The owner, or `None` if the ticket is unknown, too old, or was issued to somebody else.
        """
        found = self._issued.pop(ticket[: _TICKET_BYTES // 2], None)
        if found is None:
            return None
        secret, until, owner = found
        is_genuine = hmac.compare_digest(secret, ticket[_TICKET_BYTES // 2 :])
        if is_genuine and until > self._clock() and owner.host == host and owner.certificate == certificate:
            return owner
        return None

    def __repr__(self) -> str:
        return f"<Tickets, {len(self._issued)} unused>"
