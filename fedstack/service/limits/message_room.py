"""Bounds the bytes of whole messages that are worked on at once."""

import asyncio
from collections import deque

# A message that is this small neither waits nor counts: renewals of leases, questions, ends.
SMALL_BYTES = 64 * 1024


class MessageRoom:
    """Room for messages, in bytes. A message for which there is none waits for its turn, and gives up after a while.

    One that is larger than all the room goes alone. Those that wait are in memory too, so their bytes together have no
    more room than the others.

    Args:
      most: The bytes that there is room for.
      seconds: How long a message waits.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._waiting_bytes = 0

    async def take(self, size: int) -> bool:
        """Takes room for a message, at once or within a while; tells whether there was any."""
        if size <= SMALL_BYTES:
            return True
        if not self._waiting and self._has_room(size):
            self._taken += size
            return True
        if self._waiting and self._waiting_bytes + size > self._most:
            return False
        turn = asyncio.get_running_loop().create_future(), size
        self._waiting.append(turn)
        self._waiting_bytes += size
        try:
            done, _ = await asyncio.wait([turn[0]], timeout=self._seconds)
        except asyncio.CancelledError:
            self._leave(turn)
            if turn[0].done():
                self.give_back(size)
            raise
        if not done:
            self._leave(turn)
        return bool(done)

    def give_back(self, size: int) -> None:
        """Gives back the room of a message that took it."""
        if size > SMALL_BYTES:
            self._taken -= size
            self._admit()

    def _has_room(self, size: int) -> bool:
        return self._taken + size <= self._most or not self._taken

    def _leave(self, turn: tuple["asyncio.Future[None]", int]) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
            self._waiting_bytes -= turn[1]
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][1]):
            turn, size = self._waiting.popleft()
            self._waiting_bytes -= size
            self._taken += size
            turn.set_result(None)

    def __repr__(self) -> str:
        return f"<MessageRoom: {self._taken} of {self._most} bytes taken, {len(self._waiting)} messages wait>"
