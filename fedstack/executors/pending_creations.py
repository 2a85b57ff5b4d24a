"""Keeps back small creations until something is computed of them, and then sends them along with that.

The ids are the client's, and a creation that comes twice is created once. So a creation may be sent by whoever needs
it first, by several at once, and again after an error; and one that nobody needs is never sent.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from fedstack.proto.extensions_pb2 import CreateRequest

Creation = CreateRequest.Creation


class PendingCreations:
    """The creations that the peer is not known to have. Safe to use from several threads.

    Attributes:
      bytes: How many bytes they take.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, tuple[Creation, tuple[str, ...], int]] = {}
        self._on_their_way: Counter[str] = Counter()
        self._perhaps_there: set[str] = set()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, creation: Creation, needs: Sequence[str] = ()) -> None:
        """Adds a creation.

        Args:
          creation: The creation.
          needs: The ids of the values that it uses.
        """
        size = creation.ByteSize()
        with self._lock:
            self._pending[creation.id] = (creation, tuple(needs), size)
            self.bytes += size

    def needed_for(self, values: Iterable[str]) -> list[Creation]:
        """Returns what has to be created for some values, each after those that it uses, and marks it as on its way."""
        found: dict[str, Creation] = {}
        with self._lock:
            stack = [(value, False) for value in values]
            while stack:
                value, visited = stack.pop()
                entry = self._pending.get(value)
                if entry is None or value in found:
                    continue
                if visited:
                    found[value] = entry[0]
                else:
                    stack.append((value, True))
                    stack.extend((needed, False) for needed in entry[1])
            self._on_their_way.update(found.keys())
        return list(found.values())

    def everything(self) -> list[Creation]:
        """Returns all creations in their order, and marks them as on their way."""
        with self._lock:
            self._on_their_way.update(self._pending.keys())
            return [creation for creation, _, _ in self._pending.values()]

    def arrived(self, creations: Iterable[Creation], created: bool) -> None:
        """Takes note of the answer to what was on its way.

        Args:
          creations: What was sent.
          created: Whether the peer has it now; else it is sent again with what needs it next.
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

    def drop(self, values: Iterable[str]) -> tuple[list[str], list[str]]:
        """Forgets values that nobody refers to any more.

        Returns:
          Those that the peer has, or may have after an error; and those that have to wait: they are on their way to
          it, or are needed to create something that is kept back.
        """
        there: list[str] = []
        waiting: list[str] = []
        with self._lock:
            needed = {need for _, needs, _ in self._pending.values() for need in needs}
            for value in values:
                if value in self._on_their_way or value in needed:
                    waiting.append(value)
                else:
                    if value not in self._pending or value in self._perhaps_there:
                        there.append(value)
                    self._forget(value)
        return there, waiting

    def _forget(self, value: str) -> None:
        _, _, size = self._pending.pop(value, (None, (), 0))
        self.bytes -= size
        self._perhaps_there.discard(value)
