"""Limits the memory for messages that are being received or processed."""

import asyncio
import heapq
import itertools
import math

# Messages up to this size neither wait nor count, such as lease renewals, status requests and requests to close.
SMALL_BYTES = 64 * 1024


class MessageRoom:
    """Limits the memory for messages. A message that does not fit waits its turn, up to a time limit.

    A message larger than the limit is admitted only while no other message is processed.

    Args:
      most: The limit in bytes.
      seconds: The time limit for waiting.
      most_waiting: The maximum size of waiting messages that use memory themselves, in bytes. Further messages are
        refused.
    """

    def __init__(self, most: int, seconds: float, most_waiting: float = math.inf) -> None:
        self._most = most
        self._seconds = seconds
        self._most_waiting = most_waiting
        self._taken = 0
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []  # a heap
        self._waiting_bytes = 0
        self._numbers = itertools.count()

    async def take(self, size: int, order: int = 0) -> bool:
        """Reserves room for a message, waiting if necessary.

        Args:
          size: The size of the message in bytes.
          order: Of waiting messages, the one with the lowest number is next; of those, the first.

        Returns:
          Whether there was room in time. If so, the caller must call `give_back`.
        """
        if size <= SMALL_BYTES:
            return True
        if not self._waiting and self._has_room(size):
            self._taken += size
            return True
        if self._waiting and self._waiting_bytes + size > self._most_waiting:
            return False
        turn = order, next(self._numbers), size, asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, turn)
        self._waiting_bytes += size
        try:
            done, _ = await asyncio.wait([turn[-1]], timeout=self._seconds)
        except asyncio.CancelledError:
            self._leave(turn)
            if turn[-1].done():
                self.give_back(size)
            raise
        if not done:
            self._leave(turn)
        return bool(done)

    def give_back(self, size: int) -> None:
        """Frees the room that was reserved for a message."""
        if size > SMALL_BYTES:
            self._taken -= size
            self._admit()

    def _has_room(self, size: int) -> bool:
        return self._taken + size <= self._most or not self._taken

    def _leave(self, turn: "tuple[int, int, int, asyncio.Future[None]]") -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
            heapq.heapify(self._waiting)
            self._waiting_bytes -= turn[2]
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][2]):
            _, _, size, turn = heapq.heappop(self._waiting)
            self._waiting_bytes -= size
            self._taken += size
            turn.set_result(None)

    def __repr__(self) -> str:
        return f"<MessageRoom: {self._taken} of {self._most} bytes taken, {len(self._waiting)} messages wait>"
