"""Keeps a state for each client between the rounds of a program."""

import asyncio
import os
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

from fedstack.computations.codec.stored_values import StoredResult
from fedstack.computations.types.language import Type
from fedstack.computations.values.containers import to_result
from fedstack.data.client_seeds import ClientId, checked_ids
from fedstack.data.client_states.record_layout import RecordLayout, Records
from fedstack.data.client_states.shard_head import ids_as_json
from fedstack.data.client_states.state_shards import StateShard, rows_of_a_batch
from fedstack.errors import ContextError, InvalidValueError, ProgramStateError
from fedstack.executors.stored.stored_results import ResultStore
from fedstack.executors.survivors.client_failures import ClientFailure
from fedstack.program.argument_checks import check_instance, checked_name, checked_path
from fedstack.program.clients.attempt import Attempt, Mark, Update, check_succeeded, ended, given_up, silence
from fedstack.program.clients.migrated_shard import MigrateState, check_migrate
from fedstack.program.clients.saved_client_states import SavedClientStates, check_once
from fedstack.program.clients.shard_index import ShardIndex
from fedstack.program.clients.shard_stores import FolderStore, MemoryStore, ShardStore
from fedstack.program.states.file_program_state_manager import FileProgramStateManager
from fedstack.program.states.saved_versions import in_thread
from fedstack.program.states.staged_releases import StagedReleases


class ClientStates(SavedClientStates, StagedReleases):
    """A state for each client, which computations read and update.

        states = fedstack.ClientStates("controls", like=np.zeros(10, np.float32), state_manager=manager)
        model, changed = train_round(model, states.select(ids))
        states.update(ids, changed)
        await manager.save(model, number)

    A state is read where the client runs. Calls that follow read what was updated. It becomes permanent when the state
    manager saves the next version of the program's state: all clients of the round have new states, or none. What is
    saved never changes, so each version that the manager keeps has its states. A client that failed, or did not take
    part, keeps its state.

    In a `FederatedContext`, values that a computation returns at clients update the states of the clients whose states
    it was given; `update` is not needed there.

    Args:
      folder: The folder for the states, which is created when it is needed; `None` to keep states in memory, without a
        state manager, for as long as the process runs.
      like: The state that a client has at first, and an example of all others: numbers, arrays, and structures of them.
        Python's own numbers count as float32 and int32, as everywhere in the language; write `np.float64(0.1)` for more
        digits.
      state_manager: Saves the states together with the program's state.
      name: The name of the states, which stays the same in later processes; by default that of the folder.
      migrate: Converts a state that was saved when `like` was another one: a function that gets the values of the old
        state by path, such as `{"control": …, "steps": …}` (`""` for a state that is one value), and returns the new
        state. What is saved does not change; the next update writes all states as they are now.

    Raises:
      InvalidValueError: If an argument is not valid.
      ProgramStateError: If another run uses the folder, it belongs to another program, or states are damaged.
    """

    continues = True

    def __init__(
        self,
        folder: "str | os.PathLike[str] | None" = None,
        *,
        like: object,
        state_manager: FileProgramStateManager | None = None,
        name: str | None = None,
        migrate: MigrateState | None = None,
    ) -> None:
        self._path = None if folder is None else checked_path("folder", folder)
        if (folder is None) != (state_manager is None):
            raise InvalidValueError(
                "Expected a folder and a state_manager, found only one of them; the manager decides which states are "
                "permanent. Pass both, or neither to keep states in memory"
            )
        if state_manager is not None:
            check_instance("state_manager", state_manager, FileProgramStateManager, "it saves states of clients")
        if isinstance(like, Type):
            raise InvalidValueError(
                f"Expected the first state of a client as like, found the type {like}; pass a value"
            )
        check_migrate(migrate)
        layout = RecordLayout.of(like)
        self._lock = threading.Lock()
        # Held while files are written or removed, which may take long.
        self._applying = threading.Lock()
        run = Path(sys.argv[0] or "python").name
        store: ShardStore = MemoryStore()
        if self._path is not None and state_manager is not None:
            store = FolderStore(self._path, layout, run, state_manager, migrate)
        super().__init__(layout, layout.records(layout.checked([like], lambda _: "like")), ShardIndex(), store)
        self._name = checked_name("name", name, "states" if self._path is None else self._path.name)
        self._last = Update([], 0)
        # All updates that are of use to somebody, such as a save that has not ended.
        self._updates = WeakSet([self._last])
        # The marks of states whose last call has not ended, by the call.
        self._waiting: dict[object, list[Mark]] = {}
        # The states that were saved last, with their program's state.
        self._saved = self._last
        self._attempt = Attempt()
        # A call that has updated the states and has not ended, and the states before it.
        self._before: tuple[object, Update] | None = None
        # The last call of a program that updates the states.
        self._call: asyncio.Task[object] | None = None
        # What the names of files begin with that workers write for calls that run.
        self._writing: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        self._manager = state_manager
        if state_manager is not None:
            state_manager.release_with(self)

    @property
    def name(self) -> str:
        """The name of the states."""
        return self._name

    async def at(self, version: int) -> SavedClientStates:
        """Returns the states that clients had in a version of the program's state. They stay until it is removed.

        Raises:
          ProgramStateNotFoundError: If the version is not saved.
          InvalidValueError: If it has no such states.
          ProgramStateError: If they are damaged.
        """
        staged = None if self._manager is None else await self._manager.releases_of(version, self._name)
        if staged is None:
            raise InvalidValueError(
                f"Expected states of clients with the name {self._name!r} in version {version}, found none; choose "
                "another version"
            )
        shards = cast("Mapping[str, Any]", staged)["shards"]
        try:
            index = await in_thread(lambda: ShardIndex(self._store.find(shards)))
        except ProgramStateError:
            assert self._manager is not None
            await self._manager.releases_of(version, self._name)  # raises if the version has been removed meanwhile
            raise
        return SavedClientStates(self._layout, self._first, index, self._store)

    def update(self, client_ids: Sequence[ClientId], states: Sequence[object]) -> None:
        """Gives clients new states.

        Args:
          client_ids: The ids.
          states: A state for each client, in their order. A `fedstack.ClientFailure` leaves a client's state as it is.

        Raises:
          InvalidValueError: If there is another number of states, or a client is listed twice.
          TypeMismatchError: If a state is not like the first one.
          ContextError: If a call of a program that updates the states runs.
          ProgramStateError: If the states cannot be written, or if there are versions of the program's state, and none
            has been loaded. Then no client has a new state.
        """
        if self._call is not None and not self._call.done():
            raise ContextError(
                "Expected no call that updates the states of clients when update is called, found one that runs; await "
                "its result first"
            )
        self._call = None
        self._check_has_begun()
        self.apply(client_ids, states)

    def apply(self, client_ids: Sequence[ClientId], states: Sequence[object], call: object = None) -> int:
        """Updates states for `update`, or for a call between `begin` and `end`; returns the number of new states."""
        ids = checked_ids(client_ids)
        if len(ids) != len(states):
            raise InvalidValueError(
                f"Expected a state for each of {len(ids)} clients, found {len(states)}; pass them in the clients' order"
            )
        check_once(ids)
        new = [place for place, state in enumerate(states) if not isinstance(state, ClientFailure)]
        written, places = self._written(ids, states, new)
        column = self._layout.checked(
            [self._value(states[place]) for place in places],
            lambda index: f"the state of the client {ids[places[index]]!r}",
        )
        with self._applying:
            before = self._last_of(call)
            shards = list(written)
            if places:
                shards += self._store.add(
                    before.next,
                    [ids[place] for place in places],
                    lambda start, stop: self._layout.records(column.slice(start, stop)),
                )
            index = self._index.extended(shards)
            if few := index.worth_copying(joins=self._layout.is_small):
                copies = self._store.add(
                    before.next + len(shards), few, lambda start, stop: self._copied(index, few[start:stop])
                )
                index = index.extended(copies)
                shards += copies
            with self._lock:
                if self._last_of(call) is not before:
                    raise given_up()
                self._before = None if call is None else (call, before)
                self._index = index
                self._last = Update(index.shards, before.next + len(shards))
                self._updates.add(self._last)
        return len(new)

    def _last_of(self, call: object) -> Update:
        """Returns the last update, after which a call, or `None` without one, updates the states.

        Raises:
          ContextError: If the call is of an earlier attempt.
        """
        if call is not None and not self._attempt.has(call):
            raise given_up()
        return self._last

    def _written(
        self, ids: Sequence[ClientId], states: Sequence[object], places: Sequence[int]
    ) -> tuple[Sequence[StateShard], Sequence[int]]:
        """Returns the shards that workers have written, and the places of the other states, which are to be written.

        A shard of which only some records count would bring back the others in a later process.
        """
        found: dict[tuple[str, int], dict[int, int]] = {}
        for place in places:
            state = states[place]
            if isinstance(state, StoredResult) and state.file.store == self._store.id:
                found.setdefault((state.file.name, state.file.digest), {})[state.row] = place
        shards, left = list[StateShard](), set(places)
        for shard, rows in zip(self._store.find(found), found.values()):
            if [ids[rows[row]] if row in rows else None for row in range(len(shard.client_ids))] == shard.client_ids:
                shards.append(shard)
                left.difference_update(rows.values())
        return shards, sorted(left)

    def _value(self, state: object) -> object:
        if not isinstance(state, StoredResult):
            return state
        column = state.read([state], self.state_type, lambda _: "a state")
        return to_result(column.items()[0], self.state_type)

    def storing(self, call: object, client_ids: Sequence[ClientId]) -> tuple[ResultStore, Path] | None:
        """Returns where workers may write the new states of a call's clients until `end`; `None` if they cannot.

        The other value is the folder of the states.
        """
        if self._path is None:
            return None
        name = secrets.token_hex(6)
        with self._lock:
            self._writing[call] = name
        batch = rows_of_a_batch(self._layout)
        return ResultStore(self._store.share, self.state_type, ids_as_json(client_ids), name, batch), self._path

    def _check_has_begun(self) -> None:
        if self._manager is not None:
            self._manager.check_has_begun()

    def _held(self) -> tuple[ShardIndex, object]:
        with self._lock:
            return self._index, self._last

    def _copied(self, index: ShardIndex, client_ids: Sequence[ClientId]) -> Records:
        records = self._layout.empty(len(client_ids))
        for shard, (some, rows) in index.places(client_ids).items():
            assert shard is not None, "the clients have records"
            records[some] = shard.read(rows)
        return records

    def begin(self, call: "asyncio.Task[object]") -> None:
        """Notes that a call of a program will update the states. They belong to versions that are saved afterwards."""
        with self._lock:
            self._call = call
            self._attempt.begin(call)

    def end(self, call: object, is_done: bool) -> None:
        """Notes that a call has ended. If it has failed, the states are those before it, and `save` raises its error.

        Args:
          call: The call.
          is_done: Whether it has not failed.
        """
        with self._lock:
            if self._before is not None and self._before[0] is call:
                if not is_done:
                    self._go_back(self._before[1])
                self._before = None
            if not is_done and not self._attempt.has(call):
                silence(call)
            if is_done or self._manager is None:
                self._attempt.end(call)
            for mark in self._waiting.pop(call, []):
                mark.last = self._last
            self._writing.pop(call, None)

    def _go_back(self, update: Update) -> None:
        """Returns to the states after an update. Those of later ones may still be read, so their files stay."""
        self._index = ShardIndex(update.shards)
        self._last = Update(update.shards, self._last.next)
        self._updates.add(self._last)

    # How the program's state manager saves states.

    def mark(self) -> object:
        """Returns which updates belong to a state; see `StagedReleases.mark`."""
        with self._lock:
            mark = Mark(self._attempt, self._attempt.calls(), self._last)
            if self._call is None or self._call.done():
                self._waiting.clear()  # of calls that were cancelled before they began
            else:
                self._waiting.setdefault(self._call, []).append(mark)
            return mark

    def staged(self, mark: object) -> Callable[[], Awaitable[object]]:
        """Returns a function that makes the states of a version permanent; see `StagedReleases.staged`."""
        found = cast(Mark, mark)

        async def shards() -> object:
            await ended(found.calls)
            if found.attempt is not self._attempt:
                raise given_up()
            check_succeeded(found.calls)
            await in_thread(lambda: self._store.sync(found.last.shards))
            self._saved = found.last
            return found.last.staged

        return shards

    def give_up(self, mark: object) -> None:
        """Returns to the states that were saved last; see `StagedReleases.give_up`."""
        with self._lock:
            if cast(Mark, mark).attempt is self._attempt:
                self._go_back(self._saved)
                self._attempt = Attempt()

    def release_staged(self, staged: object) -> None:
        """Does nothing: the states are in use since they were updated."""

    def restore(self, staged: object | None) -> None:
        """Returns to the states of a version; see `StagedReleases.restore`."""
        found = cast("Mapping[str, Any]", staged or {"shards": [], "next": 0})
        shards = self._store.find(found["shards"])
        with self._lock:
            self._index = ShardIndex(shards)
            self._last = Update(shards, found["next"])
            self._saved, self._attempt = self._last, Attempt()
            self._updates.add(self._last)
            self._waiting.clear()

    def keep(self, kept: Sequence[object]) -> None:
        """Removes the states that no version has; see `StagedReleases.keep`."""

        def spared() -> tuple[set[str], list[str]]:
            with self._lock:
                names = {name for one in kept for name, _ in cast("Mapping[str, Any]", one)["shards"]}
                for update in self._updates:
                    names.update(shard.name for shard in update.shards)
                return names, list(self._writing.values())

        with self._applying:
            self._store.remove_others(spared)

    def unlock(self) -> None:
        """Lets other runs use the folder. Idempotent. The state manager calls it when it is closed."""
        self._store.unlock()

    def __repr__(self) -> str:
        return f"<ClientStates in {self._path or 'memory'}>"
