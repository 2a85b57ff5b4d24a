"""Limits how many bytes of small parcels are sent ahead of their consumer."""

from fedstack.transport.stream.layout import ProtocolError

# How many bytes an exchange, and all exchanges of a connection together, may be ahead.
EXCHANGE_WINDOW_BYTES = 4 << 20
CONNECTION_WINDOW_BYTES = 64 << 20
# What was consumed is credited to the peer once it is this part of the window.
_CREDITED_PART = 8


class Window:
    """What may be sent in an exchange or a connection, and what was received and not consumed.

    Args:
      size: The maximum number of bytes ahead, in each direction.

    Attributes:
      free: The number of bytes that this end may send.
      held: The number of bytes that this end has received and not consumed.
    """

    __slots__ = ("_consumed", "_size", "free", "held")

    def __init__(self, size: int) -> None:
        self._size = self.free = size
        self.held = self._consumed = 0

    def credited(self, count: int) -> None:
        """Records that the peer has consumed bytes.

        Raises:
          ProtocolError: If this end has not sent that many.
        """
        self.free += count
        if self.free > self._size:
            raise ProtocolError(f"Expected credit for at most {self._size} bytes, found {self.free}")

    def hold(self, size: int) -> None:
        """Records that bytes were received.

        Raises:
          ProtocolError: If the peer has sent more than it may.
        """
        self.held += size
        if self.held > self._size:
            raise ProtocolError(f"Expected at most {self._size} bytes ahead of their consumer, found {self.held}")

    def consume(self, size: int) -> int:
        """Records that received bytes were consumed, and returns how many bytes to credit to the peer now."""
        self.held -= size
        self._consumed += size
        if self._consumed * _CREDITED_PART < self._size:
            return 0
        due, self._consumed = self._consumed, 0
        return due

    def __repr__(self) -> str:
        return f"<Window, {self.free} bytes free, {self.held} held>"
