"""Holds back small creations until a computation needs them, and then sends them with it.

The client chooses the ids, and a creation that arrives twice is created once. So the first call that needs a creation
may send it, as may several calls at once, and again after an error; a creation that no call needs is never sent.
"""

import threading
from collections import Counter
from collections.abc import Iterable

import attrs

from fedstack.foundations.after_fork import renew_after_fork
from fedstack.proto.extensions_pb2 import Creation


@attrs.frozen(eq=False)
class Pending:
    """A creation that the peer is not known to have.

    Attributes:
      id: Its id at the peer.
      message: The message to send.
      needs: The ids of the values that it uses.
      data: A copy of the bytes of its large arrays at its creation: the arrays belong to the user.
      size: Its total size in bytes.
    """

    id: str
    message: Creation
    needs: tuple[str, ...]
    data: bytes
    size: int


def pending(message: Creation, needs: Iterable[str] = (), data: bytes = b"") -> Pending:
    """Returns a creation in the form in which it is sent; for the arguments see `Pending`."""
    return Pending(message.id, message, tuple(needs), data, message.ByteSize() + len(data))


class PendingCreations:
    """The creations that the peer is not known to have. Thread-safe.

    Args:
      most: How many creations to hold back.
      most_bytes: How many bytes to hold back.

    Attributes:
      bytes: Their size in bytes.
      unsent_bytes: The size in bytes of those that are not being sent.
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
        """See `after_fork`. A child sends nothing, so pending creations do not matter there."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def unsent(self) -> int:
        """How many of them are not being sent."""
        return len(self._unsent)

    def add_if_room(self, message: Creation, needs: Iterable[str] = (), data: bytes = b"") -> bool:
        """Adds a creation unless it is time to send the unsent creations; returns whether it was added."""
        found = pending(message, needs, data)
        with self._lock:
            if len(self._unsent) >= self._most or self.unsent_bytes + found.size > self._most_bytes:
                return False
            self._add(found)
            return True

    def add(self, message: Creation, needs: Iterable[str] = (), data: bytes = b"") -> None:
        """Adds a creation, however many there are; for the arguments see `Pending`."""
        found = pending(message, needs, data)
        with self._lock:
            self._add(found)

    def _add(self, found: Pending) -> None:
        self._pending[found.id] = found
        self._needed.update(found.needs)
        self.bytes += found.size
        self._note_unsent(found.id)

    def needed_for(self, values: Iterable[str]) -> list[Pending]:
        """Returns the creations that some values need, each after those that it uses, and marks them as in transit."""
        with self._lock:
            return self._sent(values)

    def everything_unsent(self) -> list[Pending]:
        """Returns the unsent creations, like `needed_for`: many may ask at once, and each gets different creations.

        The values that they use are included even if they are being sent, because they may arrive later.
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
        """Records the answer to creations in transit.

        Args:
          creations: The creations that were sent.
          created: Whether the peer has them now; if not, they are sent again with the next call that needs them.
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
        """Drops values that nothing refers to anymore.

        Returns:
          The values that the peer has, or may have after an error; and the values that have to wait: they are in
          transit, or are needed for a creation that is held back.
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
