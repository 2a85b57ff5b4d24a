"""Holds back the creation of small values until a computation needs them, and then sends it with the computation.

The client chooses the ids of values, and a peer that receives a creation twice creates the value only once. The first
call that needs a creation can therefore send it, several calls can send it concurrently, and it can be sent again after
an error. A creation that no call needs is never sent.
"""

import threading
from collections import Counter
from collections.abc import Iterable

import attrs

from fedstack.foundations.after_fork import renew_after_fork
from fedstack.proto.extensions_pb2 import Creation


@attrs.frozen(eq=False)
class Pending:
    """A creation that the peer is not known to have received.

    Attributes:
      id: The id of the value on the peer.
      message: The message to send.
      needs: The ids of the values that the creation uses.
      data: The bytes of the value's large arrays. They are copied on creation, because the arrays belong to the user.
      size: The total size of the creation in bytes.
    """

    id: str
    message: Creation
    needs: tuple[str, ...]
    data: bytes
    size: int


def pending(message: Creation, needs: Iterable[str] = (), data: bytes = b"") -> Pending:
    """Returns a `Pending` for a message; for the arguments, see `Pending`."""
    return Pending(message.id, message, tuple(needs), data, message.ByteSize() + len(data))


class PendingCreations:
    """The creations of a session that the peer is not known to have received. Thread-safe.

    Args:
      most: The maximum number of creations to hold back.
      most_bytes: The maximum total size of the creations to hold back, in bytes.

    Attributes:
      bytes: The total size of the creations in bytes.
      unsent_bytes: The total size of the creations that are not being sent, in bytes.
    """

    def __init__(self, most: int = 1000, most_bytes: int = 1 << 20) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._pending: dict[str, Pending] = {}
        self._on_their_way: Counter[str] = Counter()
        self._perhaps_there: set[str] = set()
        self._unsent: set[str] = set()
        self._needed: Counter[str] = Counter()
        self.bytes = 0
        self.unsent_bytes = 0
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replaces the lock in a forked child; see `after_fork`.

        A child sends no creations, so the pending ones are left unchanged.
        """
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def unsent(self) -> int:
        """The number of creations that are not being sent."""
        return len(self._unsent)

    def add_if_room(self, message: Creation, needs: Iterable[str] = (), data: bytes = b"") -> bool:
        """Adds a creation unless this would exceed a limit, and returns whether it was added."""
        found = pending(message, needs, data)
        with self._lock:
            if len(self._unsent) >= self._most or self.unsent_bytes + found.size > self._most_bytes:
                return False
            self._add(found)
            return True

    def add(self, message: Creation, needs: Iterable[str] = (), data: bytes = b"") -> None:
        """Adds a creation regardless of the limits; for the arguments, see `Pending`."""
        found = pending(message, needs, data)
        with self._lock:
            self._add(found)

    def _add(self, found: Pending) -> None:
        self._pending[found.id] = found
        self._needed.update(found.needs)
        self.bytes += found.size
        self._note_unsent(found.id)

    def needed_for(self, values: Iterable[str]) -> list[Pending]:
        """Returns the pending creations that the given values need, and marks them as in transit.

        Each creation follows the creations that it uses.
        """
        with self._lock:
            return self._sent(values)

    def everything_unsent(self) -> list[Pending]:
        """Returns all unsent creations in the order of `needed_for`, and marks them as in transit.

        Concurrent callers receive different unsent creations. Creations that the unsent ones use are included even if
        they are already being sent, because the peer may receive the other message later.
        """
        with self._lock:
            return self._sent([value for value in self._pending if value in self._unsent])

    def _sent(self, values: Iterable[str]) -> list[Pending]:
        found: dict[str, Pending] = {}
        stack = [(value, False) for value in values]
        stack.reverse()
        while stack:
            value, visited = stack.pop()
            entry = self._pending.get(value)
            if entry is None or value in found:
                continue
            if visited:
                found[value] = entry
            else:
                stack.append((value, True))
                stack.extend((needed, False) for needed in entry.needs)
        self._on_their_way.update(found.keys())
        for value in found:
            self._note_sent(value)
        return list(found.values())

    def arrived(self, creations: Iterable[Pending], created: bool) -> None:
        """Records the outcome of a call that contained creations.

        Args:
          creations: The creations that were sent.
          created: Whether the peer has created the values. If not, the creations are sent again with the next call that
            needs them.
        """
        with self._lock:
            for creation in creations:
                self._on_their_way[creation.id] -= 1
                if self._on_their_way[creation.id] <= 0:
                    del self._on_their_way[creation.id]
                if creation.id not in self._pending:
                    continue
                if created:
                    self._forget(creation.id)
                else:
                    self._perhaps_there.add(creation.id)
                    if creation.id not in self._on_their_way:
                        self._note_unsent(creation.id)

    def drop(self, values: Iterable[str]) -> tuple[list[str], list[str]]:
        """Drops values that are no longer referenced.

        Returns:
          A tuple of two lists of ids: the values to dispose of, because the peer has them or may have them after an
          error; and the values that cannot be dropped yet, because they are in transit or a held-back creation needs
          them.
        """
        there: list[str] = []
        waiting: list[str] = []
        with self._lock:
            for value in values:
                if value in self._on_their_way or value in self._needed:
                    waiting.append(value)
                else:
                    if value not in self._pending or value in self._perhaps_there:
                        there.append(value)
                    self._forget(value)
        return there, waiting

    def _forget(self, value: str) -> None:
        self._note_sent(value)
        found = self._pending.pop(value, None)
        if found is None:
            return
        for needed in found.needs:
            self._needed[needed] -= 1
            if not self._needed[needed]:
                del self._needed[needed]
        self.bytes -= found.size
        self._perhaps_there.discard(value)

    def _note_unsent(self, value: str) -> None:
        if value not in self._unsent:
            self._unsent.add(value)
            self.unsent_bytes += self._pending[value].size

    def _note_sent(self, value: str) -> None:
        if value in self._unsent:
            self._unsent.discard(value)
            self.unsent_bytes -= self._pending[value].size
