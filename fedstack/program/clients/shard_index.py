"""Finds the record of each client in the shards that a store has, and which shards are worth a copy of what is left."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedstack.data.client_seeds import ClientId
from fedstack.data.client_states.state_shards import StateShard

# A shard in which this share of the records is of use is copied to a new one. So each byte that is written is copied
# at most once in three times, and stores have at most four times the size of what they hold.
_WORTH_COPYING = 0.25
# With more shards of small records, the smallest half of them becomes one. Each shard takes time in each save.
_MOST_SHARDS = 512
_NOWHERE = -1


class ShardIndex:
    """Where the latest record of each client is. An index does not change, so that threads read it without a lock.

    Args:
      shards: The shards. If several have a record of a client, that of the last one counts.
    """

    def __init__(self, shards: Iterable[StateShard] = ()) -> None:
        self._numbers: dict[ClientId, int] = {}
        # For each client, by its number: the shard, by its number, and the row.
        self._shard_of: NDArray[np.int32] = np.empty(0, np.int32)
        self._row_of: NDArray[np.intp] = np.empty(0, np.intp)
        self._shards: dict[int, StateShard] = {}
        self._used: dict[int, int] = {}
        self._old: set[int] = set()  # the shards that are not current
        self._next = 0
        for shard in shards:
            self._add(shard)

    def extended(self, shards: Iterable[StateShard]) -> "ShardIndex":
        """Returns an index with more shards. It must be dropped before this one is extended again."""
        found = ShardIndex()
        found._numbers = self._numbers  # shared: readers of this index find clients in it that have no record here
        found._shard_of, found._row_of = self._shard_of.copy(), self._row_of.copy()
        found._shards, found._used, found._next = dict(self._shards), dict(self._used), self._next
        found._old = set(self._old)
        for shard in shards:
            found._add(shard)
        return found

    @property
    def client_ids(self) -> list[ClientId]:
        """The clients that have records, in the order in which they got the first one."""
        return [client for client, number in list(self._numbers.items()) if self._has(number)]

    @property
    def shards(self) -> list[StateShard]:
        """The shards with at least one record that counts, in their order."""
        return list(self._shards.values())

    @property
    def is_current(self) -> bool:
        """Whether the store has all records as they are read; see `StateShard.is_current`."""
        return not self._old

    def _has(self, number: int) -> bool:
        return number < len(self._shard_of) and self._shard_of[number] != _NOWHERE

    def _add(self, shard: StateShard) -> None:
        """Adds a shard, whose records are the latest ones of its clients. Shards without use are dropped."""
        number, self._next = self._next, self._next + 1
        numbers = self._numbers
        found = [numbers.setdefault(client, len(numbers)) for client in shard.client_ids]
        self._make_room(len(numbers))
        at: NDArray[np.intp] = np.array(found, np.intp)
        before, counts = np.unique(self._shard_of[at], return_counts=True)
        self._shard_of[at] = number
        self._row_of[at] = np.arange(len(at))
        self._shards[number], self._used[number] = shard, len(at)
        if not shard.is_current:
            self._old.add(number)
        for old, count in zip(before.tolist(), counts.tolist()):
            if old != _NOWHERE:
                self._used[old] -= count
                if not self._used[old]:
                    del self._shards[old], self._used[old]
                    self._old.discard(old)

    def _make_room(self, clients: int) -> None:
        if clients > len(self._shard_of):
            more = max(clients, 2 * len(self._shard_of)) - len(self._shard_of)
            self._shard_of = np.concatenate([self._shard_of, np.full(more, _NOWHERE, np.int32)])
            self._row_of = np.concatenate([self._row_of, np.zeros(more, np.intp)])

    def places(
        self, client_ids: Sequence[ClientId]
    ) -> "Mapping[StateShard | None, tuple[list[int], NDArray[np.intp]]]":
        """Returns where clients' records are.

        Returns:
          For each shard, which of the clients it has, by their places in `client_ids`, and their rows; for `None`, the
          clients without records.
        """
        at: NDArray[np.intp] = np.array([self._numbers.get(client, _NOWHERE) for client in client_ids], np.intp)
        shard_of = np.full(len(at), _NOWHERE, np.int32)
        known = (at != _NOWHERE) & (at < len(self._shard_of))
        shard_of[known] = self._shard_of[at[known]]
        if len(set(shard_of.tolist())) == 1:  # the usual case of few clients
            only = int(shard_of[0])
            one = None if only == _NOWHERE else self._shards[only]
            return {one: (list(range(len(at))), np.zeros(len(at), np.intp) if one is None else self._row_of[at])}
        order = np.argsort(shard_of, kind="stable")
        numbers, starts = np.unique(shard_of[order], return_index=True)
        found: dict[StateShard | None, tuple[list[int], NDArray[np.intp]]] = {}
        for number, some in zip(numbers.tolist(), np.split(order, starts[1:])):
            shard = None if number == _NOWHERE else self._shards[number]
            rows = np.zeros(len(some), np.intp) if shard is None else self._row_of[at[some]]
            found[shard] = some.tolist(), rows
        return found

    def worth_copying(self, *, joins: bool) -> list[ClientId]:
        """Returns the clients whose records should be copied to a new shard, so that the store stays small and current.

        Args:
          joins: Whether many shards are worth joining because their records are small.
        """
        few = [
            number
            for number, used in self._used.items()
            if number in self._old or used <= _WORTH_COPYING * len(self._of(number))
        ]
        if joins and len(self._shards) > _MOST_SHARDS:
            few = list(dict.fromkeys([*few, *sorted(self._used, key=self._used.__getitem__)[: _MOST_SHARDS // 2]]))
        return [client for number in few for client in self._clients_of(number)]

    def _of(self, number: int) -> Sequence[ClientId]:
        return self._shards[number].client_ids

    def _clients_of(self, number: int) -> list[ClientId]:
        """Returns the clients whose latest record is in a shard."""
        ids = self._of(number)
        at = [self._numbers[client] for client in ids]
        return [ids[row] for row in np.flatnonzero(self._shard_of[at] == number).tolist()]
