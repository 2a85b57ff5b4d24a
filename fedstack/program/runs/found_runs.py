"""Finds the runs in a folder and tells how far each is, without disturbing those that go on."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from fedstack.data.client_states.state_shards import SUFFIX
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.program.releases.csv_file_release_manager import CSVFileReleaseManager
from fedstack.program.runs.checked_versions import check_version
from fedstack.program.runs.run import KEY, METRICS, STATES
from fedstack.program.runs.run_record import RECORD, RunRecord
from fedstack.program.states.folder_lock import LockHolder, holder_of
from fedstack.program.states.saved_versions import PREFIX, versions_in


@attrs.frozen
class FoundRun:
    """A run, as it is in its folder.

    Attributes:
      name: Its path below the folder that was searched.
      folder: Its folder.
      record: What it is.
      versions: The versions of the state that are kept.
      rows: What it has released.
      size: The bytes of all its files.
      client_states: The bytes of the states of clients that belong to it, by their names.
      holder: The process that has it open, if any.
    """

    name: str
    folder: Path
    record: RunRecord
    versions: list[int]
    rows: list[dict[str, object]]
    size: int
    client_states: dict[str, int]
    holder: LockHolder | None

    @property
    def rounds(self) -> int:
        """The number of the last complete round."""
        return self.versions[-1] if self.versions else 0

    @property
    def last_metrics(self) -> Mapping[str, object]:
        """What was released last, by name. Rows of rounds that are not complete do not count."""
        rows = [row for row in self.rows if not isinstance(key := row[KEY], int) or key <= self.rounds]
        return {name: value for name, value in (rows[-1] if rows else {}).items() if name != KEY}


def find_runs(folder: Path) -> tuple[list[FoundRun], dict[str, ProgramStateError]]:
    """Returns the runs in a folder and below it, sorted by name, and what is wrong with others, by name.

    Raises:
      InvalidValueError: If there is no such folder.
    """
    if not folder.is_dir():
        raise InvalidValueError(f"Expected a folder with runs, found no folder at {folder}; check the path")
    runs: list[FoundRun] = []
    errors: dict[str, ProgramStateError] = {}

    def unreadable(error: OSError) -> None:
        path = Path(error.filename)
        errors[path.relative_to(folder).as_posix()] = ProgramStateError(
            f"Cannot read {path}: {text_of(error)}; allow it"
        )

    for path, folders, files in os.walk(folder, onerror=unreadable):
        if RECORD in files:
            folders.clear()
            try:
                runs.append(found := _found(Path(path), folder))
                if found.versions:  # the run is listed all the same, as it goes on from an older version
                    check_version(found.folder, found.folder / STATES / f"{PREFIX}{found.versions[-1]}")
            except ProgramStateError as error:
                errors[Path(path).relative_to(folder).as_posix()] = error
        folders.sort()
    return sorted(runs, key=lambda run: run.name), errors


def _found(path: Path, below: Path) -> FoundRun:
    try:
        holder = holder_of(path / STATES)
    except OSError as error:
        raise ProgramStateError(f"Cannot read {path / STATES}: {text_of(error)}; allow it") from error
    return FoundRun(
        path.relative_to(below).as_posix(),
        path,
        RunRecord.read(path),
        versions_in(path / STATES),
        CSVFileReleaseManager(path / METRICS, key_fieldname=KEY).rows(),
        _size_of(path),
        {states: _size_of(path / states) for states in _client_states_in(path)},
        holder,
    )


def _client_states_in(folder: Path) -> list[str]:
    return sorted({shard.parent.name for shard in folder.glob(f"*/*{SUFFIX}")})


def _size_of(folder: Path) -> int:
    size = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # a run that goes on removes old versions
                size += os.lstat(os.path.join(path, name)).st_size
    return size
