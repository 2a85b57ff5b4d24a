"""Which versions of a program's state are kept, and how others are removed."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from fedstack.foundations.error_text import text_of
from fedstack.foundations.synced_folders import sync_folder

_logger = logging.getLogger(__name__)
_MOST_ERRORS = 4


@attrs.frozen
class KeptVersions:
    """Which versions are kept.

    Attributes:
      total: Their number, of which the first one is one if `first` is true; all if it is 0 or less.
      first: Whether the first one is kept.
      every: Multiples of this number are kept, too; `None` for no others.
    """

    total: int
    first: bool
    every: int | None

    def old(self, versions: Sequence[int], damaged: Collection[int]) -> list[int]:
        """Returns the versions that are not kept.

        Damaged ones do not count among the last, as no run can go on from them. They are removed when they are older.

        Args:
          versions: The versions in order, up to the one that was saved last.
          damaged: Which of them are known to be damaged.
        """
        sound = [version for version in versions if version not in damaged]
        if not 0 < self.total < len(sound):
            return []
        first = 1 if self.first else 0
        last = len(sound) - max(self.total - first, 1)
        old = [*sound[first:last], *(version for version in versions if version in damaged and version < sound[last])]
        return [version for version in old if self.every is None or version % self.every]


class UnneededFiles:
    """Removes files that a run no longer needs. One that cannot be removed ends no run: a warning tells it once."""

    def __init__(self) -> None:
        self._told: set[Path] = set()

    def remove(self, paths: Iterable[Path]) -> list[Path]:
        """Removes files, also after a power failure, and returns those that cannot be removed."""
        left: list[Path] = []
        folders: set[Path] = set()
        for path in paths:
            try:
                path.unlink(missing_ok=True)
                folders.add(path.parent)
            except OSError as error:
                left.append(path)
                self.tell(path, error)
        for folder in folders:
            try:
                sync_folder(folder)
            except OSError as error:
                self.tell(folder, error)
        return left

    def tell(self, path: Path, error: OSError) -> None:
        """Logs that files could not be removed, once for each path."""
        if path not in self._told:
            self._told.add(path)
            _logger.warning(
                "Cannot remove what is no longer needed in %s: %s. The run goes on; remove it, or allow that", path,
                text_of(error),
            )  # fmt: skip


def shown_errors(errors: Mapping[int, Exception]) -> str:
    """Returns why each of some versions cannot be loaded, for messages."""
    shown = [f"version {version}: {text_of(error)}" for version, error in list(errors.items())[:_MOST_ERRORS]]
    return "; ".join(shown) + (f"; and {len(errors) - _MOST_ERRORS} more" if len(errors) > _MOST_ERRORS else "")
