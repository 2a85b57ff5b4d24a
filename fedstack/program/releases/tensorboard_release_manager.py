"""Releases values to TensorBoard."""

import os
from collections.abc import Sequence
from typing import cast

from fedstack.errors import ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.program.argument_checks import checked_path
from fedstack.program.releases.staged_release_manager import Key, Row, StagedReleaseManager
from fedstack.program.states.file_program_state_manager import FileProgramStateManager


class TensorBoardReleaseManager(StagedReleaseManager):
    """Releases values to a folder that TensorBoard shows, without TensorFlow. Keys are steps.

    A number is a scalar (float32, as TensorBoard has it), an array with dimensions a histogram of its finite values,
    and a string a text. The names are those of the members, such as `train/loss`.

    The first step of a process, and each that is not after the last one, take back what was released for them and for
    later steps, as a run does that is resumed from an older state. So TensorBoard draws no round twice. Because of
    this, each manager needs a folder of its own, and keys that ascend.

    Args:
      summary_dir: The folder, which is created when it is needed. Each process adds a file to it.
      state_manager: If given, values are released together with the next state that it saves. So a run that is killed
        between the two and resumed shows the same values as one that is not.

    Raises:
      InvalidValueError: If the folder is no path.
      ImportError: If tensorboard is not installed.
    """

    def __init__(
        self, summary_dir: "str | os.PathLike[str]", *, state_manager: FileProgramStateManager | None = None
    ) -> None:
        from fedstack.program.releases.event_file import EventFile

        self._folder = checked_path("summary_dir", summary_dir)
        self._make_file = EventFile
        self._file: EventFile | None = None
        super().__init__(f"{self._folder.name}/", state_manager)

    def _add(self, rows: Sequence[tuple[Key, Row]]) -> None:
        if not rows:
            return
        try:
            if self._file is None:
                self._file = self._make_file(self._folder)
            self._file.append([(cast(int, key), row) for key, row in rows])
        except OSError as error:
            self._file = None
            raise ProgramStateError(
                f"Cannot write events to {self._folder}: {text_of(error)}; free some space, or choose a folder that "
                "may be written to"
            ) from error
