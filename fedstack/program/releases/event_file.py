"""Writes a file of events as TensorBoard reads it. Only this module imports tensorboard, which is optional."""

# tensorboard has no annotations:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedstack.foundations.synced_folders import sync_folder
from fedstack.program.releases.staged_release_manager import Cell, Row, float_of

try:
    # These parts work without TensorFlow, which `tensorboard.summary.Writer` needs for histograms and texts.
    from tensorboard.compat.proto import event_pb2
    from tensorboard.plugins.histogram.summary_v2 import histogram_pb
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] != "tensorboard":
        raise
    raise ImportError('TensorBoard is not installed; install it with: pip install "fedstack[tensorboard]"') from error

_events: Any = event_pb2
_PREFIX = "events.out.tfevents."


class EventFile:
    """A new file of events in a folder. TensorBoard reads the files of a folder in the order of their names.

    Args:
      folder: The folder, which is created when it is needed.

    Raises:
      OSError: If the file cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        times = [name[len(_PREFIX) :].partition(".")[0] for name in os.listdir(folder) if name.startswith(_PREFIX)]
        # After all that are there, also if a clock has been set back or the last one is of this second.
        number = max([int(time.time()), *(int(one) + 1 for one in times if one.isdecimal())])
        self._path = folder / f"{_PREFIX}{number:010d}.{socket.gethostname()}.{os.getpid()}"
        self._last: int | None = None
        with open(self._path, "xb") as file:
            RecordWriter(file).write(_event(file_version="brain.Event:2"))
        sync_folder(folder)

    def append(self, rows: Sequence[tuple[int, Row]]) -> None:
        """Writes the values of steps. Once this returns, they survive a power failure.

        Raises:
          OSError: If the file cannot be written. Nothing can be appended to it then, as its last event may be cut off.
        """
        with open(self._path, "ab") as file:
            writer = RecordWriter(file)
            for step, row in rows:
                if self._last is None or step <= self._last:
                    # TensorBoard drops what it has of this step and of later ones, from earlier files too.
                    writer.write(_event(step=step, session_log=_events.SessionLog(status=_events.SessionLog.START)))
                for name, cell in row.items():
                    if cell is not None:
                        writer.write(_event(step=step, summary=_summary_of(name, cell)))
                self._last = step
            file.flush()
            os.fsync(file.fileno())


def _event(**fields: object) -> bytes:
    return _events.Event(wall_time=time.time(), **fields).SerializeToString()


def _summary_of(name: str, cell: Cell) -> object:
    if isinstance(cell, (int, float)):
        with np.errstate(over="ignore"):
            return scalar_pb(name, np.float32(float_of(cell)))
    array = np.asarray(cell)
    if array.dtype.kind not in "biuf":
        return text_pb(name, cell if isinstance(cell, str) else array.astype(str))
    numbers = array.astype(np.float64)
    return histogram_pb(name, numbers[np.isfinite(numbers)])
