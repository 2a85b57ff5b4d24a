"""Writes what happens into a file that ui.perfetto.dev and chrome://tracing show as a timeline."""

import contextlib
import io
import json
import os

from fedstack.observe.events import Event
from fedstack.observe.observers import Observer, Subscription, add_observer
from fedstack.observe.trace_tracks import TraceTracks

_END = b"\n]\n"


class TraceFile(Observer):
    """A trace in the JSON trace event format. After each event it is a whole JSON text.

    Args:
      path: The file; what is there is overwritten.

    Raises:
      OSError: If there can be no such file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._tracks = TraceTracks()
        # Without a buffer: a process that is killed has written all.
        self._file: io.FileIO = open(path, "wb", buffering=0)  # noqa: SIM115
        self._size = 0  # without the end

    def observe(self, event: Event) -> None:
        entries = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in self._tracks.entries(event))
        if entries:
            self._append(entries.encode())

    def close(self) -> None:
        """Ends the trace."""
        with contextlib.suppress(OSError):
            if not self._size:
                self._write(b"[]\n")
        self._file.close()

    def _append(self, entries: bytes) -> None:
        text = (b",\n" if self._size else b"[\n") + entries
        try:
            self._write(text + _END)
        except OSError as error:
            with contextlib.suppress(OSError):  # what was there is whole again: it has been written once
                self._file.truncate(self._size)
                self._write(_END if self._size else b"[]\n")
            raise OSError(error.errno, error.strerror, self._path) from None
        self._size += len(text)

    def _write(self, data: bytes) -> None:
        """Writes over the end of the file."""
        self._file.seek(self._size)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def __repr__(self) -> str:
        return f"<TraceFile {self._path}>"


def trace_to(path: str | os.PathLike[str]) -> Subscription:
    """Writes a trace of what happens from now on: calls, phases, clients, workers, retries.

        with fedstack.observe.trace_to("run.json"):
            train_round(model, clients)

    Open the file at https://ui.perfetto.dev or in chrome://tracing. It has some 200 bytes an event. If it cannot be
    written any more, a warning says so, and work goes on.

    Args:
      path: The file; what is there is overwritten.

    Returns:
      What ends the trace, as a context manager or by its method `remove`.

    Raises:
      OSError: If there can be no such file.
    """
    return add_observer(TraceFile(path))
