"""The metrics of a run, whose keys are the numbers of its rounds."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from fedstack.foundations.error_text import counted
from fedstack.program.releases.csv_file_release_manager import CSVFileReleaseManager
from fedstack.program.releases.staged_release_manager import Key, Row
from fedstack.program.states.file_program_state_manager import FileProgramStateManager

_logger = logging.getLogger(__name__)


class RunMetrics(CSVFileReleaseManager):
    """Releases the metrics of a run as rows of a CSV file. See `Run.metrics`."""

    def __init__(self, file_path: Path, *, state_manager: FileProgramStateManager, key_fieldname: str) -> None:
        # The rows that were released since a version was loaded, which belong to the history that goes on.
        self._new: set[Key] = set()
        super().__init__(file_path, state_manager=state_manager, key_fieldname=key_fieldname)

    def restore(self, staged: object | None) -> None:
        """Continues from a state; see `StagedReleases.restore`."""
        with self._lock:
            self._new.clear()
        super().restore(staged)

    def _add(self, rows: Sequence[tuple[Key, Row]]) -> None:
        super()._add(rows)
        self._new.update(key for key, _ in rows)

    def leave(self, version: int, staged: object | None) -> None:
        """Removes the rows of rounds after the one from which the run goes on, as they are of a history that it left.

        Args:
          version: The number of the round.
          staged: The rows that were released with it, which later versions may have replaced.
        """
        with self._lock:
            later = [key for key in self._known() if isinstance(key, int) and key > version and key not in self._new]
            rows = cast("list[tuple[Key, Row]]", staged or [])
            super()._add([(key, row) for key, row in rows if key not in self._new])
            if later:
                self._remove(later)
                _logger.warning(
                    "Removed %s of the rounds %d to %d from %s, since the run has gone on from round %d",
                    counted(len(later), "row"), min(later), max(later), self._path, version,
                )  # fmt: skip
