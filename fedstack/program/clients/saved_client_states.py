"""The states of clients as they are in a version of a program's state."""

from collections import Counter
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.stored_values import InStore, Whereabouts
from fedstack.computations.types.language import CLIENTS, FederatedType, Type
from fedstack.computations.values.columns import Column
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.deferred_column import Where
from fedstack.computations.values.tensor_values import mismatch
from fedstack.data.client_seeds import ClientId, checked_ids
from fedstack.data.client_states.record_layout import RecordLayout, Records
from fedstack.errors import InvalidValueError
from fedstack.program.clients.shard_index import ShardIndex
from fedstack.program.clients.shard_stores import ShardStore


class SavedClientStates:
    """A state for each client, which computations read. Returned by `ClientStates.at`.

    Args:
      layout: The layout of records.
      first: The record of clients whose states have not been updated.
      index: The records of the others.
      store: Where the records are.
    """

    def __init__(self, layout: RecordLayout, first: Records, index: ShardIndex, store: ShardStore) -> None:
        self._layout = layout
        self._first = first
        self._index = index
        self._store = store

    @property
    def store_id(self) -> str | None:
        """The id by which other processes find the store of the records; `None` if they cannot have it."""
        return self._store.id if self._held()[0].is_current else None

    @property
    def state_type(self) -> Type:
        """The type of a client's state."""
        return self._layout.state_type

    @property
    def federated_type(self) -> FederatedType:
        """The type of what `select` returns: a state for each client."""
        return FederatedType(self._layout.state_type, CLIENTS)

    @property
    def client_ids(self) -> list[ClientId]:
        """The sorted ids of the clients whose states have been updated."""
        self._check_has_begun()
        return sorted(self._index.client_ids, key=lambda one: (type(one).__name__, one))

    def select(self, client_ids: Sequence[ClientId]) -> "list[ClientState]":
        """Returns the states of clients, to be passed to computations, which read them where the clients run.

        Args:
          client_ids: The ids, which are strings, bytes or whole numbers. A client that is new has the first state.

        Raises:
          TypeMismatchError: If an id is of another type.
          ProgramStateError: If there are versions of the program's state, and none has been loaded.
        """
        self._check_has_begun()
        return [ClientState(self, client) for client in checked_ids(client_ids)]

    def get(self, client_id: ClientId) -> object:
        """Returns the state of a client.

        Raises:
          TypeMismatchError: If the id is of another type.
          ProgramStateError: If the state cannot be read, or is damaged, or if there are versions of the program's
            state, and none has been loaded.
        """
        self._check_has_begun()
        return to_result(self.column(checked_ids([client_id])).items()[0], self.state_type)

    def column(self, client_ids: Sequence[ClientId]) -> Column:
        """Returns the states of clients as the runtime stores them."""
        places = self._index.places(client_ids)
        records = self._layout.empty(len(client_ids))
        for shard, (some, rows) in places.items():
            if shard is None:
                records[some] = self._first[0]
            elif len(places) == 1:
                records = shard.read(rows)
            else:
                records[some] = shard.read(rows)
        return self._layout.column(records)

    def _check_has_begun(self) -> None:
        """Checks that the states are those of a version; those of a version that is saved always are."""

    def _held(self) -> tuple[ShardIndex, object]:
        """Returns the records as they are now, and what keeps their shards in the store."""
        return self._index, None

    def locate(self, client_ids: Sequence[ClientId]) -> Whereabouts:
        """Returns where the states of clients are, for a process that has the store, too."""
        index, owner = self._held()
        files: list[tuple[str, int]] = []
        of: NDArray[np.int64] = np.zeros(len(client_ids), np.int64)
        records: NDArray[np.int64] = np.zeros(len(client_ids), np.int64)
        for shard, (some, rows) in index.places(client_ids).items():
            if shard is not None:
                of[some], records[some] = len(files), rows + 1
                files.append((shard.name, shard.digest))
        first = self._layout.column(self._first).items()[0]
        return Whereabouts(self.state_type, files, of.tolist(), records.tolist(), first, owner)

    def __repr__(self) -> str:
        return f"<SavedClientStates of {len(self._index.client_ids)} clients>"


@attrs.define(eq=False)  # not frozen: a million of them would take twice as long
class ClientState(InStore):
    """The state of a client, which is read where the client runs.

    Attributes:
      states: The states of all clients.
      client_id: The id of the client.
    """

    states: SavedClientStates
    client_id: ClientId

    @classmethod
    def read(cls, found: Sequence["ClientState"], member: Type, where: Where) -> "Sequence[object] | Column":
        """Reads the states of many clients."""
        states = found[0].states
        if all(one.states is states for one in found):
            return states.column([one.client_id for one in found])
        return [one.states.column([one.client_id]).items()[0] for one in found]

    @classmethod
    def store_of(cls, found: Sequence["ClientState"]) -> str | None:
        """Returns the id of the store that has the states; see `InStore`."""
        states = found[0].states
        return states.store_id if all(one.states is states for one in found) else None

    @classmethod
    def locate(cls, found: Sequence["ClientState"]) -> Whereabouts:
        """Returns where the states are; see `InStore`."""
        return found[0].states.locate([one.client_id for one in found])

    def check(self, member: Type, place: str) -> None:
        """Checks that states have an expected type."""
        if not member.is_assignable_from(self.states.state_type):
            mismatch(member, f"the state of a client, {self.states.state_type}", place, "pass another `like`")

    def __repr__(self) -> str:
        return f"<ClientState of {self.client_id!r}>"


def check_once(client_ids: Sequence[ClientId]) -> None:
    """Checks that no client is listed twice.

    Raises:
      InvalidValueError: If one is.
    """
    if len(set(client_ids)) != len(client_ids):
        ((twice, _),) = Counter(client_ids).most_common(1)
        raise InvalidValueError(
            f"Expected each client once, found {twice!r} twice; a client has one state, so let it take part once"
        )
