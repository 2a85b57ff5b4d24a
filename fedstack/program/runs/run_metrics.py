"""The metrics of a run, whose keys are the numbers of its rounds."""

import logging

from fedstack.foundations.error_text import counted
from fedstack.program.releases.csv_file_release_manager import CSVFileReleaseManager

_logger = logging.getLogger(__name__)


class RunMetrics(CSVFileReleaseManager):
    """Releases the metrics of a run as rows of a CSV file. See `Run.metrics`."""

    def leave(self, version: int) -> None:
        """Removes the rows of rounds after the one from which the run goes on, as they are of a history that it left.

        Args:
          version: The number of the round.
        """
        with self._lock:
            later = [key for key in self._known() if isinstance(key, int) and key > version]
            if later:
                self._remove(later)
                _logger.warning(
                    "Removed %s of the rounds %d to %d from %s, since the run has gone on from round %d",
                    counted(len(later), "row"), min(later), max(later), self._path, version,
                )  # fmt: skip
