"""Saves the states of a program in a folder, one file for each version."""

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from fedstack.computations.types.language import (
    ProgramStateExistsError,
    ProgramStateManager,
    ProgramStateNotFoundError,
)
from fedstack.data.headed_file import DamagedStateError
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.foundations.number_checks import check_bool, check_whole_number, checked_positive
from fedstack.program.argument_checks import checked_name, checked_path
from fedstack.program.states.declared_states import DeclaredStates
from fedstack.program.states.folder_lock import FolderLock
from fedstack.program.states.kept_versions import KeptVersions, UnneededFiles, shown_errors
from fedstack.program.states.left_history import LeftHistory
from fedstack.program.states.program_id import ProgramId
from fedstack.program.states.saved_versions import PREFIX, in_thread, versions_in
from fedstack.program.states.staged_releases import StagedReleases
from fedstack.program.states.state_file import SavedState, read_releases, read_state, write_state
from fedstack.program.states.state_structure import Migrate, as_of_now, checked_migrate, named_values, restored

_S = TypeVar("_S")
_logger = logging.getLogger(__name__)


class FileProgramStateManager(ProgramStateManager[Any]):
    """Saves and loads the states of a program in a folder.

    A state is a structure of NumPy arrays, numbers, strings, `None`, references to such values, and objects that
    implement `federated_language.Serializable`, such as the iterator of a data source. Containers are those of
    `federated_language.program`: dictionaries, lists, tuples and named tuples.

    Each version is one file. It appears when it is complete and on the disk, so that a process that is killed at any
    moment leaves all versions before. One run at a time may use a folder: the first call of `save` or `load_latest`
    takes a lock, which the process has until it ends or calls `close`.

    Args:
      root_dir: The folder, which is created when it is needed.
      prefix: The beginning of the names of files. The version follows.
      keep_total: The number of versions that are kept: the last ones, and the first one if `keep_first` is true. If it
        is 0 or less, all versions are kept.
      keep_first: Whether the first version is kept.
      keep_every_k: Versions that are multiples of this number are kept, too; `None` for no others.
      migrate: Converts a state that was saved with another structure: a function that gets the values by name, such as
        `model/weights`, and returns those of the present structure.
      name: The name of the run, which others are told that want to use the folder; by default that of the program.

    Attributes:
      program_id: The id of the program's states.

    Raises:
      InvalidValueError: If an argument is not valid.
    """

    def __init__(
        self,
        root_dir: "str | os.PathLike[str]",
        prefix: str = PREFIX,
        keep_total: int = 5,
        keep_first: bool = True,
        *,
        keep_every_k: int | None = None,
        migrate: Migrate | None = None,
        name: str | None = None,
    ) -> None:
        self._folder = checked_path("root_dir", root_dir)
        if not isinstance(cast(object, prefix), str) or Path(prefix).name != prefix or "\0" in prefix:
            raise InvalidValueError(
                f"Expected the beginning of a file name as prefix, found {prefix!r}; pass the folder as root_dir"
            )
        self._prefix = prefix
        self._kept_versions = KeptVersions(
            check_whole_number("keep_total", keep_total),
            check_bool("keep_first", keep_first),
            None if keep_every_k is None else checked_positive("keep_every_k", keep_every_k),
        )
        self._migrate = checked_migrate(migrate)
        self._releases: list[StagedReleases] = []
        self._declared = DeclaredStates(self._releases)
        # What was released with the versions that have been looked at.
        self._kept: dict[int, Mapping[str, object]] = {}
        # The version that was loaded or saved last; 0 if there was none to load.
        self._version: int | None = None
        self._has_begun = False  # also while the first version is being written
        # Damaged versions, which may be saved again.
        self._passed_over: set[int] = set()
        self._left = LeftHistory()
        self._unneeded = UnneededFiles()
        self._lock = FolderLock(self._folder, checked_name("name", name, Path(sys.argv[0] or "python").name))
        self.program_id = ProgramId(self._folder / f".{prefix}id", self._take)
        self._saving = threading.Lock()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def release_with(self, releases: StagedReleases) -> None:
        """Makes releases a part of the states that are saved from now on."""
        if any(one.name == releases.name for one in self._releases):
            raise InvalidValueError(
                f"Expected different names for a program's files, found {releases.name!r} twice; choose another name"
            )
        if releases.continues and self._version is not None:
            releases.restore(self._releases_of(self._version).get(releases.name))
        self._releases.append(releases)

    async def get_versions(self) -> list[int] | None:
        """Returns the saved versions in order, or `None` if there are none. Damaged ones are among them."""
        return await in_thread(self._versions) or None

    async def load(self, version: int, structure: _S) -> _S:
        """Returns the state of a version, from which states of clients go on, too.

        To look at a version while a program goes on, load it with another manager, without states of clients; see also
        `ClientStates.at`.

        Args:
          version: The version.
          structure: A state of the same structure, such as the first one. Serialized objects are read by the classes of
            the objects in it. Arrays have the dtype and the shape of those that are saved; one of length 0 stands for
            any length, and `None` for any value.

        Raises:
          ProgramStateNotFoundError: If the version is not saved.
          ProgramStateError: If the file is damaged, is no program state, or is from a newer version of fedstack.
          InvalidValueError: If the state has another structure.
        """
        saved = await in_thread(lambda: self._read(version))
        state = cast(_S, restored(saved.values, structure, str(self._path(version)), self._migrate))
        self._left.loaded(version, await in_thread(self._versions), is_first=self._version is None)
        for one in self._releases:
            if one.continues:
                await in_thread(partial(one.restore, saved.releases.get(one.name)))
        self._version, self._has_begun = version, True
        return state

    async def load_latest(self, structure: _S) -> tuple[_S | None, int]:
        """Returns the state of the latest version and the version; `(None, 0)` if there is none.

        A damaged version is passed over, with a warning, and may be saved again. What was released with the version is
        released again, since the process may have ended before.

        Args:
          structure: A state of the same structure; see `load`.

        Raises:
          ProgramStateError: If another run uses the folder, no version can be loaded although there are some, or one is
            from a newer version of fedstack.
          InvalidValueError: If the state has another structure.
        """
        await in_thread(self._take)
        damaged: dict[int, DamagedStateError] = {}
        for version in reversed(await in_thread(self._versions)):
            try:
                saved = await in_thread(partial(self._read, version))
                state = cast(_S, restored(saved.values, structure, str(self._path(version)), self._migrate))
                self._passed_over = set(damaged)
                await in_thread(partial(self._restore, version, saved.releases))
                return state, version
            except ProgramStateNotFoundError:
                continue
            except DamagedStateError as error:
                _logger.warning("Passed over version %d of the program's state: %s", version, error)
                damaged[version] = error
        self._passed_over = set()
        if damaged:
            raise DamagedStateError(
                f"Expected a version of the program's state in {self._folder} that can be loaded, found "
                f"{shown_errors(damaged)}. Restore the folder, or remove these files to begin anew"
            )
        await in_thread(partial(self._restore, 0, {}))
        return None, 0

    def save(self, program_state: object, version: int) -> "CoroutineType[Any, Any, None]":
        """Saves a state, and releases what was released before. Once it is awaited, both survive a power failure.

        The state is that of the moment of the call: arrays are copied, and may change before the coroutine has ended,
        or begun, and so may iterators. States are saved in the order of the calls. After a `load`, the state becomes
        the latest one: later versions, which belong to a history that was left, are removed. If a call fails whose
        result a state needs, or that updates states of clients, its error is raised, and states of clients are again
        those that were saved last.

        Args:
          program_state: The state.
          version: The version.

        Raises:
          ProgramStateExistsError: If the version is saved already.
          ProgramStateError: If the state cannot be written, a later version cannot be removed, or another run uses the
            folder.
          InvalidValueError: If a value is of a kind that cannot be saved.
        """
        return self._save_in_turn(as_of_now(program_state), version, [one.mark() for one in self._releases])

    async def _save_in_turn(self, program_state: object, version: int, marks: Sequence[object]) -> None:
        check_whole_number("version", version, 0)
        staged = [one.staged(mark) for one, mark in zip(self._releases, marks)]
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            try:
                values = await named_values(program_state)
                releases = {one.name: await found() for one, found in zip(self._releases, staged)}
            except Exception:
                for one, mark in zip(self._releases, marks):
                    await in_thread(partial(one.give_up, mark))
                raise
            await in_thread(lambda: self._save(values, version, releases))

    def drop_client_states(self, name: str) -> None:
        """Lets versions that are saved from now on be without states of clients that the last one has.

        The versions that are kept still have them. Remove their folder when it has become useless.

        Args:
          name: The name of the states.

        Raises:
          InvalidValueError: If this program has declared them.
        """
        self._declared.drop(name)

    async def releases_of(self, version: int, name: str) -> object | None:
        """Returns what was released with a version under a name, or `None`; for implementations of releases.

        Raises:
          ProgramStateNotFoundError: If the version is not saved.
        """
        if version not in await in_thread(self._versions):
            raise ProgramStateNotFoundError(version)
        found = (await in_thread(lambda: self._releases_of(version))).get(name)
        if found is None and version not in await in_thread(self._versions):  # a save has removed it meanwhile
            raise ProgramStateNotFoundError(version)
        return found

    def check_has_begun(self) -> None:
        """Checks that a version was loaded or saved, unless there is none; for what goes on from a version.

        Raises:
          ProgramStateError: If not, or if another run has gone on since.
        """
        self._left.check_is_here(self._versions, self._folder)
        if not self._has_begun and (versions := self._versions()) and not self._has_begun:
            raise ProgramStateError(
                f"Expected a version of the program's state to be loaded before its states of clients are used, found "
                f"version {versions[-1]} in {self._folder}, which was not; call load_latest first"
            )

    @property
    def folder(self) -> Path:
        """The folder."""
        return self._folder

    def has_versions(self) -> bool:
        """Returns whether there are saved versions."""
        return bool(self._versions())

    def acquire(self) -> None:
        """Takes the lock of the folder, which the first use of the manager takes otherwise. Idempotent.

        Raises:
          ProgramStateError: If another run uses the folder, or it cannot be written to.
        """
        self._take()

    def close(self) -> None:
        """Lets other runs use the folder, and the files of what is released with the states. Idempotent."""
        for one in self._releases:
            one.unlock()
        self._lock.release()

    def _path(self, version: int) -> Path:
        return self._folder / f"{self._prefix}{version}"

    def _versions(self) -> list[int]:
        return versions_in(self._folder, self._prefix)

    def _read(self, version: int) -> SavedState:
        try:
            return read_state(self._path(version))
        except FileNotFoundError:
            raise ProgramStateNotFoundError(version) from None

    def _take(self) -> None:
        """Takes the lock, and removes what a process has left that was killed while it wrote."""
        if self._lock.acquire():
            self._unneeded.remove(self._folder.glob(f".{self._prefix}*.new"))

    def _save(self, values: "list[tuple[str, object]]", version: int, releases: Mapping[str, object]) -> None:
        self._take()  # not in a forked child, in which another thread may have the next lock for ever
        with self._saving:
            self._left.check_is_here(self._versions, self._folder)
            path = self._path(version)
            if path.exists() and version not in self._passed_over:
                raise ProgramStateExistsError(version=version, path=str(path))
            if self._version is None and any(one.continues for one in self._releases) and self._versions():
                raise ProgramStateError(
                    f"Expected a version to be loaded before the first save, found versions in {self._folder} whose "
                    "states of clients would be lost; call load_latest first, or choose another folder"
                )
            self._check_declared()
            self._has_begun = True
            self._left.saves()
            write_state(path, values, releases)
            self._kept[version], self._version = releases, version
            self._passed_over.discard(version)
            for one in self._releases:
                if (before := self._left.goes_on_from) is not None:
                    one.leave(before, self._releases_of(before).get(one.name))
                if one.name in releases:
                    one.release_staged(releases[one.name])
            self._left.leave(version, self._passed_over, self._path, self._unneeded)
            self._remove_old()

    def _check_declared(self) -> None:
        last = max(self._versions(), default=0) if self._version is None else self._version
        with contextlib.suppress(ProgramStateError):  # what is no version has no states
            self._releases_of(last)
        self._declared.check(self._kept.get(last, {}), f"version {last} in {self._folder}")

    def _restore(self, version: int, staged: Mapping[str, object]) -> None:
        for one in self._releases:
            one.restore(staged.get(one.name))
        self._version, self._has_begun = version, True
        self._left.restored(version)
        self._remove_old()  # the process may have been killed before it did

    def _remove_old(self) -> None:
        """Removes the versions that are not kept. Later ones than the present one are damaged, and for users."""
        versions = [version for version in self._versions() if version <= (self._version or 0)]
        self._unneeded.remove(map(self._path, self._kept_versions.old(versions, self._passed_over)))
        self._sweep()

    def _sweep(self) -> None:
        """Removes what no version has. As long as there are damaged versions, it is not known what these have."""
        self._passed_over.intersection_update(self._versions())
        if self._passed_over:
            return
        self._kept = {version: self._releases_of(version) for version in self._versions()} if self._releases else {}
        for one in self._releases:
            try:
                one.keep([staged[one.name] for staged in self._kept.values() if one.name in staged])
            except OSError as error:
                self._unneeded.tell(Path(cast("str | None", error.filename) or one.name), error)

    def _releases_of(self, version: int) -> Mapping[str, object]:
        """Returns what was released with a version; nothing for a damaged one."""
        kept = self._kept  # a sweep on another thread has others
        if version not in kept:
            try:
                kept[version] = read_releases(self._path(version))
            except (FileNotFoundError, DamagedStateError):
                kept[version] = {}
        return kept[version]

    def __repr__(self) -> str:
        return f"<FileProgramStateManager in {self._folder}>"
