"""Shards of clients' states, which are written once and never changed.

Of the records of many clients only those that are needed are read.
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.data.client_seeds import ClientId
from fedstack.data.client_states.record_layout import RecordLayout, Records, RecordsOf, record_dtype
from fedstack.data.client_states.shard_head import WHAT, read_head, write_head
from fedstack.data.headed_file import (
    cannot_write,
    damaged,
    opened_at_once,
    opened_regular,
    removed_on_error,
    write_parts,
)
from fedstack.errors import ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.synced_folders import sync_folder

SUFFIX = ".states"
# Files of large records have about this size: few enough records to end together, and enough of them to be worth a new
# file, which may take longer to create than 1 MB takes to write. Small records share one file.
_FILE_BYTES = 1 << 21
_MOST_BYTES = 1 << 28
# Large records are written in batches of this size, so that their files are synced together.
_BATCH_BYTES = 16 << 20
_SYNCS_AT_ONCE = 8


class StateShard(Protocol):
    """The states that some clients had after a round."""

    @property
    def name(self) -> str:
        """What names the shard in its store."""
        ...

    @property
    def digest(self) -> int:
        """A CRC-32 that tells the shard from others of the same name."""
        ...

    @property
    def client_ids(self) -> Sequence[ClientId]:
        """The clients, in the order of their records."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether the store has the records as `read` returns them. Otherwise they are converted each time."""
        ...

    def read(self, rows: "NDArray[np.intp]") -> Records:
        """Returns some records, in the order of `rows`.

        Raises:
          ProgramStateError: If a record cannot be read, or is damaged.
        """
        ...


@attrs.frozen(eq=False)
class MemoryShard:
    """A shard in memory. See `StateShard`.

    Attributes:
      name: See `StateShard`.
      client_ids: See `StateShard`.
      records: The record of each client.
    """

    name: str
    client_ids: Sequence[ClientId]
    records: Records
    digest = 0
    is_current = True

    def read(self, rows: "NDArray[np.intp]") -> Records:
        """Returns some records; see `StateShard.read`."""
        return self.records[rows]


@attrs.frozen(eq=False)
class FileShard:
    """A shard in a file. See `StateShard`.

    Attributes:
      path: The path of the file.
      client_ids: See `StateShard`.
      digest: See `StateShard`.
      fields: The layout of its records; see `RecordLayout`.
      size: The size of a record in bytes.
      crcs: The CRC-32 of each record.
      start: The position of the first record in the file.
    """

    path: Path
    client_ids: Sequence[ClientId]
    digest: int
    fields: Sequence[Sequence[Any]]
    size: int
    crcs: Sequence[int]
    start: int
    is_current = True

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    @classmethod
    def written(
        cls, path: Path, layout: RecordLayout, client_ids: Sequence[ClientId], records: Records, *, is_new: bool = False
    ) -> "FileShard":
        """Writes a shard, which may be lost in a power failure until `sync` has returned.

        Args:
          path: The path of the file.
          layout: The layout of the records.
          client_ids: The clients.
          records: A record for each of them.
          is_new: Whether a file that exists is an error. Otherwise it is replaced.

        Raises:
          ProgramStateError: If the file cannot be written. Then it does not exist, or is as it was.
        """
        crcs = [zlib.crc32(records[row]) for row in range(len(records))]
        head = write_head(layout.fields, client_ids, crcs)
        try:
            file = open(path, "xb" if is_new else "wb", buffering=0)  # noqa: SIM115 - must not be removed if it is there
            with removed_on_error(path), file:
                write_parts(file, [head, memoryview(cast(Any, np.ascontiguousarray(records).reshape(-1)))])
        except OSError as error:
            raise cannot_write(path, error) from error
        return cls(path, client_ids, zlib.crc32(head), layout.fields, layout.dtype.itemsize, crcs, len(head))

    @classmethod
    def opened(cls, path: Path, layout: RecordLayout | None) -> "FileShard":
        """Returns the shard that a file has.

        Args:
          path: The path of the file.
          layout: The expected layout; `None` for any.

        Raises:
          FileNotFoundError: If the file does not exist.
          InvalidValueError: If its records have another layout.
          ProgramStateError: If it is damaged, of another kind or of a newer format.
        """
        with opened_regular(path, WHAT) as file:
            head = read_head(file, path)
        if layout is not None:
            layout.check(head.fields, str(path))
        size = record_dtype(head.fields).itemsize if layout is None else layout.dtype.itemsize
        fields = head.fields if layout is None else layout.fields
        return cls(path, head.client_ids, head.digest, fields, size, head.crcs, head.start)

    def sync(self) -> None:
        """Makes the content of the file survive a power failure, but not yet its name.

        Raises:
          ProgramStateError: If the disk fails.
        """
        try:
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def read(self, rows: "NDArray[np.intp]") -> Records:
        """Returns some records; see `StateShard.read`."""
        try:
            found = self._read(rows)
        except FileNotFoundError as error:
            raise ProgramStateError(
                f"Expected states of clients in {self.path}, found that the file has been removed, as with the last "
                "version of the program's state that needs it; read the states of a version that is kept, or restore it"
            ) from error
        except OSError as error:
            raise ProgramStateError(f"Cannot read {self.path}: {text_of(error)}; check the disk") from error
        for record, row in zip(found, cast("list[int]", rows.tolist())):
            if zlib.crc32(record) != self.crcs[row]:
                raise damaged(WHAT, self.path, f"the state of the client {self.client_ids[row]!r}")
        return found

    def _read(self, rows: "NDArray[np.intp]") -> Records:
        """Reads rows that follow each other at once. A map of the file would end the process if the disk fails."""
        found: Records = np.empty((len(rows), self.size), np.uint8)
        begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1).tolist()
        with open(self.path, "rb", buffering=0, opener=opened_at_once) as file:
            for begin, end in zip(begins, [*begins[1:], len(rows)]):
                file.seek(self.start + int(rows[begin]) * self.size)
                part, done = memoryview(cast(Any, found[begin:end].reshape(-1))), 0
                while done < len(part) and (count := cast(int, file.readinto(part[done:]))):
                    done += count
        return found


def rows_of_a_file(layout: RecordLayout) -> int:
    """Returns the number of records in a file."""
    return max((_MOST_BYTES if layout.is_small else _FILE_BYTES) // layout.dtype.itemsize, 1)


def rows_of_a_batch(layout: RecordLayout) -> int:
    """Returns the number of records that are worth writing at once, while there are more to come."""
    return max(rows_of_a_file(layout), _BATCH_BYTES // layout.dtype.itemsize)


def write_shards(
    layout: RecordLayout, client_ids: Sequence[ClientId], records: RecordsOf, path_at: Callable[[int], Path]
) -> list[FileShard]:
    """Writes records to as many new files as they need, or to none.

    Args:
      layout: The layout of the records.
      client_ids: The clients.
      records: Returns the records of the clients from a start to a stop (exclusive).
      path_at: Returns the path of the file at an index.

    Raises:
      ProgramStateError: If a file cannot be written.
    """
    rows, shards = rows_of_a_file(layout), list[FileShard]()
    try:
        for start in range(0, len(client_ids), rows):
            some = list(client_ids[start : start + rows])
            records_of_file = records(start, start + len(some))
            shards.append(FileShard.written(path_at(len(shards)), layout, some, records_of_file, is_new=True))
    except BaseException:
        remove_shards(shards)
        raise
    return shards


def remove_shards(shards: Iterable[FileShard]) -> None:
    """Removes the files of shards, as far as the disk lets it."""
    for shard in shards:
        with contextlib.suppress(OSError):
            shard.path.unlink(missing_ok=True)


def sync_shards(shards: Sequence[FileShard], folder: Path) -> None:
    """Makes the files of shards, and their names in a folder, survive a power failure.

    Raises:
      ProgramStateError: If the disk fails.
    """
    if not shards:
        return
    with ThreadPoolExecutor(min(len(shards), _SYNCS_AT_ONCE)) as pool:  # the disk joins what arrives together
        list(pool.map(FileShard.sync, shards))
    try:
        sync_folder(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
