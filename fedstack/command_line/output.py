"""Writes what a server says: as text for people, or as a JSON object a line for machines.

Writes to standard error as long as that is possible, and drops what cannot be written.

What functions print at a worker goes there, and so do logs. A full disk, or a reader that has left, must not become an
error of a function that prints.
"""

import contextlib
import datetime
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, BinaryIO, TextIO, cast

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

# What a record may have beside its message (`extra` of logging): of which call it is, and of which function and client.
_FIELDS = ("call", "function", "client")


class JsonFormatter(logging.Formatter):
    """Makes one line of a record, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        given = vars(record)
        fields = {name: given.get(name) for name in _FIELDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(record.levelname.lower(), record.name, record.getMessage(), when=record.created, **fields)


def json_line(level: str, logger: str, message: str, *, when: float | None = None, **more: Any) -> str:
    """Returns a JSON object, in one line without its end, that says something.

    Args:
      level: One of `LEVELS`.
      logger: Who says it.
      message: What is said.
      when: At what time, in seconds as of `time.time`; now by default.
      more: More members of the object, as far as they are not `None`.
    """
    moment = datetime.datetime.fromtimestamp(time.time() if when is None else when, datetime.timezone.utc)
    entry = {"time": moment.isoformat(), "level": level, "logger": logger, "message": message, **more}
    return json.dumps({name: value for name, value in entry.items() if value is not None}, default=str)


def printed_as_json(text: bytes) -> bytes:
    """Returns what a function prints as JSON objects, one for each of its lines that is not empty."""
    lines = text.decode("utf-8", "backslashreplace").splitlines()
    return "".join(json_line("info", "output", line) + "\n" for line in lines if line.strip()).encode()


def configure_logging(level: str, form: str, out: TextIO) -> None:
    """Logs everything of at least `level`, one of `LEVELS`, in one of `FORMATS`, to a stream."""
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        JsonFormatter() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)  # those of functions too: each line is to be in that format


# So many bytes of a line without an end are kept at most.
_LONGEST_LINE = 2**20


class _ForgivingFile(io.RawIOBase):
    """A descriptor that takes everything. It has no lock, which a child that a function forks might find held."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return size

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True


class _ConvertingFile(_ForgivingFile):
    """Writes what `convert` makes of whole lines.

    A line that a thread has begun waits for its end, for a flush of that thread, or for the end of everything: one call
    of `print` writes several times. Each thread touches an entry of its own, so that no lock is needed here either.
    """

    def __init__(self, descriptor: int, convert: Callable[[bytes], bytes]) -> None:
        super().__init__(descriptor)
        self._convert = convert
        self._begun: dict[int, bytearray] = {}

    def write(self, data: Any, /) -> int:
        given = bytes(data)
        begun = self._begun.setdefault(threading.get_ident(), bytearray())
        lines, end, rest = given.rpartition(b"\n")
        if end:
            ended = bytes(begun) + lines + end
            begun[:] = rest
            super().write(self._convert(ended))
        else:
            begun += rest
        if len(begun) >= _LONGEST_LINE:
            self.flush()
        return len(given)

    def flush(self) -> None:
        self._write_begun(threading.get_ident())

    def end(self) -> None:
        """Writes what any thread has begun."""
        for thread in list(self._begun):
            self._write_begun(thread)

    def _write_begun(self, thread: int) -> None:
        begun = self._begun.pop(thread, None)
        if begun:
            super().write(self._convert(bytes(begun)))


@contextlib.contextmanager
def all_output_to_standard_error(convert: Callable[[bytes], bytes] | None = None) -> Generator[TextIO]:
    """Sends what is written to standard output and standard error inside of the block there, and lets none of it fail.

    Standard error that is no file, because someone has replaced it, is used as it is.

    Args:
      convert: Returns what is written instead of bytes that are given.

    Yields:
      Standard error that does not fail, and converts nothing.
    """
    descriptor = _descriptor_of(sys.stderr)
    if descriptor is None:
        with contextlib.redirect_stdout(sys.stderr):
            yield sys.stderr
        return
    plain = out = _stream(_ForgivingFile(descriptor), sys.stderr.encoding)
    converting = None if convert is None else _ConvertingFile(descriptor, convert)
    if converting is not None:
        # It keeps what belongs to a line itself, for each thread.
        out = _stream(converting, sys.stderr.encoding, write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            yield plain
        finally:
            out.flush()  # a line without an end
            if converting is not None:
                converting.end()


def _stream(file: _ForgivingFile, encoding: str, write_through: bool = False) -> TextIO:
    """Returns a text file that writes at the ends of lines, or at once."""
    raw = cast(BinaryIO, file)
    return io.TextIOWrapper(
        raw, encoding, "backslashreplace", line_buffering=not write_through, write_through=write_through
    )


def _descriptor_of(stream: object) -> int | None:
    """Returns the descriptor of a stream; `None` if it has none, or there is no stream (as under pythonw.exe)."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    with contextlib.suppress(OSError, ValueError):
        return stream.fileno()
    return None
