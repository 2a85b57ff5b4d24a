"""The stores of clients' states that a worker reads and writes for programs on other machines.

A store is a folder. It has an id in a file, which each process that owns the folder draws at random. A program that
sends a client to a worker names the store by its id, and never by a path, so that it reaches only the folders that the
operator of the worker has named, and no older copy of its own.
"""

import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from fedstack.computations.codec.stored_values import StoredFile, StoredValue
from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column
from fedstack.data.client_seeds import ClientId, checked_ids
from fedstack.data.client_states.record_layout import RecordLayout, Records, RecordsOf
from fedstack.data.client_states.shard_head import ids_from_json
from fedstack.data.client_states.state_shards import (
    SUFFIX,
    FileShard,
    remove_shards,
    rows_of_a_file,
    sync_shards,
    write_shards,
)
from fedstack.data.folder_ids import read_id, write_id
from fedstack.data.headed_file import DamagedStateError
from fedstack.errors import CarrierError, InvalidValueError
from fedstack.foundations.caches import SharedCache
from fedstack.foundations.error_text import name_text
from fedstack.foundations.value_text import describe

_logger = logging.getLogger(__name__)
_ID_FILE = ".store"
# Stores are the folders that are named, and folders in them up to this depth.
_DEPTH = 2
_NAME = re.compile(r"[0-9a-z-]{1,120}" + re.escape(SUFFIX))
_BEGINNING = re.compile(r"[0-9a-z-]{1,80}")
# The shards whose ids of clients are kept in memory: how many, and about how many bytes of these ids.
_MOST_SHARDS, _MOST_BYTES, _ID_BYTES = 10_000, 64 << 20, 80


def id_of_store(folder: Path) -> str | None:
    """Returns the id of the store in a folder; `None` if there is none."""
    return read_id(folder / _ID_FILE)


def name_store(folder: Path) -> str:
    """Gives the store in a folder a new id, and returns it. Only the process that owns the folder calls this.

    Raises:
      ProgramStateError: If the id cannot be written.
    """
    return write_id(folder / _ID_FILE)


class ClientStateFolders:
    """The stores in some folders. See `StoreFolders`.

    Args:
      folders: The folders, each of which is a store, or has stores in it.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [folder.absolute() for folder in folders]
        self._known: dict[str, Path] = {}
        self._lock = threading.Lock()
        # By store, name and digest, with the layout of their records.
        self._shards: SharedCache[tuple[str, str, int], tuple[FileShard, RecordLayout]]
        self._shards = SharedCache(_MOST_SHARDS, _MOST_BYTES)

    def find(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that stores have; see `StoreFolders.find`."""
        with self._lock:
            if not all(self._is_there(one) for one in ids):
                self._known = self._stores()
            return [one for one in ids if one in self._known]

    def _is_there(self, store: str) -> bool:
        folder = self._known.get(store)
        return folder is not None and id_of_store(folder) == store

    def _stores(self) -> dict[str, Path]:
        """Returns the stores by their ids, without those of which there is a copy: either may be meant."""
        found = {folder: store for folder in self._candidates() if (store := id_of_store(folder)) is not None}
        counts = Counter(found.values())
        return {store: folder for folder, store in found.items() if counts[store] == 1}

    def _candidates(self) -> Iterator[Path]:
        for folder in self._folders:
            root = folder.resolve()
            level = [root]
            for depth in range(_DEPTH + 1):
                if depth:
                    level = [below for one in level for below in _folders_in(one) if below.is_relative_to(root)]
                yield from level

    def _folder_of(self, store: str) -> Path:
        self.find([store])
        folder = self._known.get(store)
        if folder is None:
            named = " or ".join(map(str, self._folders)) or "a folder, of which none is named"
            raise CarrierError(
                f"Expected the id of a store of clients' states in {named}, found "
                f"{name_text(store)}; name the folder of the store: fedstack serve --client-states FOLDER, "
                "ServerConfig.client_states, or local_worker_pool(client_states=[...])"
            )
        return folder

    def read(self, found: Sequence[StoredValue]) -> Column:
        """Reads states of one type; see `StoreFolders.read`.

        Raises:
          CarrierError: If the store is not in one of the folders.
          InvalidValueError: If a file cannot be one of a store, has records of another type, or no such record.
          ProgramStateError: If a file is missing or damaged, or is not the one that is meant.
        """
        layout = RecordLayout.of(found[0].file.type_spec)
        return layout.column(self.records(found, layout))

    def records(self, found: Sequence[StoredValue], layout: RecordLayout) -> Records:
        """Reads the records of states that have one layout; see `read`."""
        places: dict[StoredFile, list[int]] = {}
        for place, value in enumerate(found):
            places.setdefault(value.file, []).append(place)
        records = layout.empty(len(found) if len(places) > 1 else 0)
        for file, some in places.items():
            shard, rows = self._shard(file, layout), [found[place].row for place in some]
            if not 0 <= min(rows) <= max(rows) < len(shard.client_ids):
                raise InvalidValueError(
                    f"Expected the index of one of {len(shard.client_ids)} records in {shard.path}, found {max(rows)}"
                )
            read = shard.read(np.array(rows, np.intp))
            if len(places) == 1:
                records = read
            else:
                records[some] = read
        return records

    def _shard(self, file: StoredFile, layout: RecordLayout) -> FileShard:
        key = file.store, file.name, file.digest
        shard, known = self._shards.get(key) or (None, layout)
        if shard is None:
            folder = self._folder_of(file.store)
            shard = opened_shard(folder, file.name, file.digest, layout)
            if shard.path.is_symlink():
                raise InvalidValueError(f"Expected a file of clients' states in {folder}, found the link {file.name}")
            self._shards.put(key, (shard, layout), _ID_BYTES * len(shard.client_ids))
        layout.check(known.fields, str(shard.path))
        return shard

    def write(self, store: str, name: str, type_spec: Type, ids: bytes, values: Column) -> Sequence[StoredValue]:
        """Writes states to new files; see `StoreFolders.write`.

        Raises:
          CarrierError: If the store is not in one of the folders.
          InvalidValueError: If the name or the ids are not valid.
          ProgramStateError: If the files cannot be written.
        """
        layout = RecordLayout.of(type_spec)
        shards = self.write_records(
            store, name, layout, ids, len(values), lambda start, stop: layout.records(values.slice(start, stop))
        )
        return stored_in(
            [StoredFile(store, shard.name, shard.digest, type_spec, self) for shard in shards],
            [len(shard.client_ids) for shard in shards],
        )

    def write_records(
        self, store: str, name: str, layout: RecordLayout, ids: bytes, count: int, records: RecordsOf
    ) -> Sequence[FileShard]:
        """Writes records to new files, which survive a power failure; see `write`.

        Args:
          store: The id of the store.
          name: What the names of the files begin with.
          layout: The layout of the records.
          ids: The id of each client, as JSON.
          count: The number of records.
          records: Returns the records from a start to a stop (exclusive).
        """
        if not _BEGINNING.fullmatch(name):
            raise InvalidValueError(
                f"Expected letters, digits and hyphens as the beginning of names of files, found {name_text(name)}"
            )
        clients, folder, size = ids_in(ids, count), self._folder_of(store), rows_of_a_file(layout)
        shards = write_shards(layout, clients, records, lambda index: folder / f"{name}-{index * size:x}{SUFFIX}")
        try:
            sync_shards(shards, folder)
        except BaseException:
            remove_shards(shards)
            raise
        return shards

    def close(self) -> None:
        """Does nothing."""

    def __repr__(self) -> str:
        return f"<ClientStateFolders {', '.join(map(str, self._folders))}>"


def _folders_in(folder: Path) -> list[Path]:
    """Returns the folders in a folder; none if they cannot be listed, or somebody removes them meanwhile."""
    try:
        with os.scandir(folder) as entries:  # which knows of most files what they are without a look at each
            return [Path(one.path).resolve() for one in entries if one.is_dir(follow_symlinks=False) or _is_linked(one)]
    except OSError:
        return []


def _is_linked(entry: "os.DirEntry[str]") -> bool:
    return entry.is_symlink() and os.path.isdir(entry.path)


def stored_in(files: Sequence[StoredFile], rows: Sequence[int]) -> Sequence[StoredValue]:
    """Returns where values are that have been written to files, of which each has a number of rows."""
    return [StoredValue(file, row) for file, count in zip(files, rows) for row in range(count)]


def folders_of(folders: "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]") -> tuple[Path, ...]:
    """Returns the absolute paths of folders with clients' states, as a configuration names them.

    Raises:
      InvalidValueError: If one is not a path.
    """
    several = isinstance(cast(object, folders), Iterable) and not isinstance(folders, (str, os.PathLike))
    found = tuple(cast("Iterable[str]", folders if several else (folders,)))
    for folder in found:
        if not isinstance(cast(object, folder), (str, os.PathLike)) or not os.fspath(folder):
            raise InvalidValueError(f"Expected client_states to contain paths of folders, found {describe(folder)}")
    return tuple(Path(folder).absolute() for folder in found)


def warn_of_missing_folders(folders: Iterable[Path], name: str) -> None:
    """Warns of folders that do not exist.

    Args:
      folders: The folders.
      name: The name of the argument or option that names them.
    """
    for folder in folders:
        if not folder.is_dir():
            _logger.warning(
                "Expected the folders in %s to exist on this machine, found no folder at %s; correct the path, or "
                "create or mount the folder: until then, states of clients are sent to workers",
                name,
                folder,
            )


def ids_in(content: bytes, count: int) -> list[ClientId]:
    """Returns the ids of clients in a message.

    Raises:
      InvalidValueError: If they are not valid, or of another number.
    """
    try:
        found = checked_ids(ids_from_json(json.loads(content)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidValueError(f"Expected a list of client ids in JSON, found {name_text(str(content))}") from error
    if len(found) != count:
        raise InvalidValueError(f"Expected the ids of {count} clients, found {len(found)}")
    return list(found)


def opened_shard(folder: Path, name: str, digest: int, layout: RecordLayout | None = None) -> FileShard:
    """Returns a shard of a store by its name and digest, with a layout of its records if that is known.

    Raises:
      InvalidValueError: If its records have another layout.
      ProgramStateError: If it is missing or damaged, or is another one.
    """
    if not _NAME.fullmatch(name):
        raise InvalidValueError(f"Expected the name of a file of clients' states, found {name_text(name)}")
    try:
        shard = FileShard.opened(folder / name, layout)
    except FileNotFoundError as error:
        raise DamagedStateError(
            f"Expected the clients' states that belong to the program's state, found no file {error.filename}; "
            "restore it, or load an older version"
        ) from error
    if shard.digest != digest:
        raise DamagedStateError(
            f"Expected the clients' states that belong to the program's state in {shard.path}, found others, as "
            "after a copy from elsewhere; restore the file, or load an older version"
        )
    return shard
