"""Which versions of a program's state a run leaves behind that goes on from an older one."""

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fedstack.errors import ProgramStateError
from fedstack.program.states.kept_versions import UnneededFiles

_logger = logging.getLogger(__name__)


class LeftHistory:
    """The other versions that were there when one was loaded.

    Attributes:
      goes_on_from: The version from which the process goes on, until it saves.
    """

    def __init__(self) -> None:
        self.goes_on_from: int | None = None
        self._later: set[int] = set()
        # Until a save or `load_latest`, which have the lock of the folder.
        self._seen: set[int] | None = None

    def loaded(self, version: int, versions: Sequence[int], *, is_first: bool) -> None:
        """Notes that a version was loaded, without the lock of the folder if it is the first."""
        self._later, self.goes_on_from = {later for later in versions if later > version}, version
        if is_first:
            self._seen = set(versions)

    def restored(self, version: int) -> None:
        """Notes that the latest version was loaded, with the lock of the folder."""
        self._later, self._seen, self.goes_on_from = set(), None, version

    def saves(self) -> None:
        """Notes that the process begins to save, with the lock of the folder."""
        self._seen = None

    def check_is_here(self, versions: Callable[[], Sequence[int]], folder: Path) -> None:
        """Checks that no other run has gone on since a version was loaded.

        Raises:
          ProgramStateError: If one has.
        """
        if self._seen is not None and (new := set(versions()) - self._seen):
            raise ProgramStateError(
                "Expected a state that goes on from the versions that there are, found that another run has saved "
                f"version {max(new)} in {folder} since one was loaded; call load_latest, and go on from there"
            )

    def leave(
        self, version: int, damaged: Collection[int], path_of: Callable[[int], Path], unneeded: UnneededFiles
    ) -> None:
        """Removes later versions than one that was saved, which the next process would load otherwise.

        Args:
          version: The version that was saved.
          damaged: Versions that are known to be damaged, which no process loads.
          path_of: Returns the file of a version.
          unneeded: Removes files.

        Raises:
          ProgramStateError: If one cannot be removed.
        """
        left = sorted(later for later in self._later if later > version and later not in damaged)
        self._later, self.goes_on_from = set(), None
        if kept := unneeded.remove(map(path_of, left)):
            raise ProgramStateError(
                f"Expected version {version}, which is saved, to become the latest one, found that {kept[0]} cannot be "
                "removed; remove it, since the next process would load it"
            )
        if left:
            _logger.warning(
                "Removed the versions %s of the program's state, since the run has gone on with version %d from an "
                "older one", ", ".join(map(str, left)), version,
            )  # fmt: skip
