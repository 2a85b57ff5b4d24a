"""Stores of shards: a folder with a file for each, or memory."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from fedstack.data.client_seeds import ClientId
from fedstack.data.client_states.record_layout import RecordLayout, RecordsOf
from fedstack.data.client_states.shard_head import may_be_shard
from fedstack.data.client_states.state_shards import (
    SUFFIX,
    FileShard,
    MemoryShard,
    StateShard,
    sync_shards,
    write_shards,
)
from fedstack.data.client_states.store_folders import name_store, opened_shard
from fedstack.errors import FedstackError, ProgramStateError
from fedstack.program.clients.folder_owner import bind, check_files, check_owner
from fedstack.program.clients.migrated_shard import MigrateState, migrated
from fedstack.program.states.file_program_state_manager import FileProgramStateManager
from fedstack.program.states.folder_lock import FolderLock

# Returns the names of shards, and what names of shards begin with.
Spared: TypeAlias = Callable[[], tuple[Collection[str], Collection[str]]]


class ShardStore(Protocol):
    """Where shards are. Their names are numbers that follow each other."""

    @property
    def id(self) -> str | None:
        """The id by which others find the store that this process has taken; `None` if they cannot have it."""
        ...

    def add(self, number: int, client_ids: Sequence[ClientId], records: RecordsOf) -> Sequence[StateShard]:
        """Adds records as shards, of which the first has the given number, or a later one if that is in use.

        Args:
          number: The number.
          client_ids: The clients.
          records: Returns the records of the clients from a start to a stop (exclusive).

        Raises:
          ProgramStateError: If they cannot be written.
        """
        ...

    def find(self, found: Iterable[tuple[str, int]]) -> Sequence[StateShard]:
        """Returns shards by their names and digests.

        Raises:
          InvalidValueError: If records have another layout.
          ProgramStateError: If a shard is missing or damaged.
        """
        ...

    def sync(self, shards: Iterable[StateShard]) -> None:
        """Makes shards survive a power failure.

        Raises:
          ProgramStateError: If the disk fails.
        """
        ...

    def share(self) -> str | None:
        """Takes the store for this process, and returns its id; `None` if others cannot have it."""
        ...

    def remove_others(self, spared: Spared) -> None:
        """Removes all shards that are there but those that are spared.

        Args:
          spared: Called once it is known which shards are there, so that it need not know of later ones.

        Raises:
          ProgramStateError: If the store belongs to another program.
        """
        ...

    def unlock(self) -> None:
        """Lets others use the store. Idempotent."""
        ...


class MemoryStore:
    """Shards in memory, which exist as long as somebody has them. See `ShardStore`."""

    id = None

    def add(self, number: int, client_ids: Sequence[ClientId], records: RecordsOf) -> Sequence[StateShard]:
        """Adds records; see `ShardStore.add`."""
        return [MemoryShard(str(number), list(client_ids), records(0, len(client_ids)))]

    def find(self, found: Iterable[tuple[str, int]]) -> Sequence[StateShard]:
        """Returns nothing: what was in memory does not outlive its owner."""
        return []

    def sync(self, shards: Iterable[StateShard]) -> None:
        """Does nothing."""

    def share(self) -> str | None:
        """Returns nothing: others cannot have it."""
        return None

    def remove_others(self, spared: Spared) -> None:
        """Does nothing."""

    def unlock(self) -> None:
        """Does nothing."""


class FolderStore:
    """Shards in a folder that belongs to a program, one run of which may use it at a time. See `ShardStore`.

    Args:
      folder: The folder, which is created when it is needed.
      layout: The layout of the records.
      run: The name of the run, which others are told that want to use the folder.
      manager: The state manager of the program.
      migrate: Converts states that were saved with another layout; `None` to refuse them.
    """

    def __init__(
        self,
        folder: Path,
        layout: RecordLayout,
        run: str,
        manager: FileProgramStateManager,
        migrate: MigrateState | None = None,
    ) -> None:
        self._migrate = migrate
        self._folder = folder
        self._layout = layout
        self._manager = manager
        self._free: int | None = None  # from this number on, no file has a name
        self._lock = FolderLock(folder, run)
        self._unsynced: dict[str, FileShard] = {}
        self._is_taken = False
        self._taking = threading.Lock()
        self._naming = threading.Lock()
        self._id: str | None = None

    @property
    def id(self) -> str | None:
        """The id that this process has given to the folder; see `ShardStore.id`."""
        with self._naming:
            if self._id is None and self._is_taken:
                with contextlib.suppress(ProgramStateError):
                    self._id = name_store(self._folder)
            return self._id

    def share(self) -> str | None:
        """Takes the folder, and returns its id; see `ShardStore.share`."""
        try:
            self._take()
        except FedstackError:  # the update will say so
            return None
        return self.id

    def _take(self) -> None:
        with self._taking:
            if not self._is_taken:
                self._check()
            self._lock.acquire()
            if not self._is_taken:
                self._check()
                bind(self._folder, self._manager)
                self._is_taken = True

    def _check(self) -> None:
        check_files(self._folder)
        check_owner(self._folder, self._manager)

    def add(self, number: int, client_ids: Sequence[ClientId], records: RecordsOf) -> Sequence[StateShard]:
        """Adds records; see `ShardStore.add`."""
        self._take()
        if self._free is None:
            self._free = self._first_free()
        first = max(number, self._free)

        def path_at(index: int) -> Path:
            return self._folder / f"{first + index:08d}{SUFFIX}"

        try:
            shards = write_shards(self._layout, client_ids, records, path_at)
        except ProgramStateError as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
            first = max(number, self._first_free())  # somebody has put a file there
            shards = write_shards(self._layout, client_ids, records, path_at)
        self._free = first + len(shards)
        self._unsynced.update((shard.name, shard) for shard in shards)
        return shards

    def _first_free(self) -> int:
        """Returns the number from which on no file has a name."""
        stems = [path.stem for path in self._folder.glob(f"*{SUFFIX}")]
        return max((int(stem) + 1 for stem in stems if stem.isascii() and stem.isdecimal()), default=0)

    def find(self, found: Iterable[tuple[str, int]]) -> Sequence[StateShard]:
        """Returns shards by their names and digests; see `ShardStore.find`."""
        if not self._is_taken:
            self._check()
        if self._migrate is None:
            return [opened_shard(self._folder, name, digest, self._layout) for name, digest in found]
        shards = [opened_shard(self._folder, name, digest) for name, digest in found]
        return [migrated(shard, self._layout, self._migrate) for shard in shards]

    def sync(self, shards: Iterable[StateShard]) -> None:
        """Syncs shards and their names; see `ShardStore.sync`."""
        if not self._is_taken:
            self._check()
        new = [self._unsynced[shard.name] for shard in shards if shard.name in self._unsynced]
        sync_shards(new, self._folder)
        for shard in new:
            self._unsynced.pop(shard.name, None)

    def remove_others(self, spared: Spared) -> None:
        """Removes all shards but some; see `ShardStore.remove_others`."""
        if not self._folder.exists():
            return
        self._take()
        files = list(self._folder.glob(f"*{SUFFIX}"))
        names, beginnings = spared()
        old = [path for path in files if path.name not in names and not path.name.startswith(tuple(beginnings))]
        failure: OSError | None = None
        for path in filter(may_be_shard, old):
            try:
                path.unlink(missing_ok=True)
                self._unsynced.pop(path.name, None)
            except OSError as error:  # the others go nevertheless
                failure = failure or error
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # breaks the reference cycle of the error and this frame

    def unlock(self) -> None:
        """Lets other runs use the folder. Idempotent."""
        self._lock.release()

    def __repr__(self) -> str:
        return str(self._folder)
