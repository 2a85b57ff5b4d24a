"""Writes the output of a server: its logs, as text or JSON lines, and the output of the functions that it runs.

All output goes to standard error. Output that cannot be written is dropped, so that a full disk or a closed pipe does
not raise an error in a function that prints.
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

# The attributes of log records that fedstack passes as `extra` to the logger.
_FIELDS = ("call", "function", "client")


class JsonFormatter(logging.Formatter):
    """Formats each log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        given = vars(record)
        fields = {name: given.get(name) for name in _FIELDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(record.levelname.lower(), record.name, record.getMessage(), when=record.created, **fields)


def json_line(level: str, logger: str, message: str, *, when: float | None = None, **more: Any) -> str:
    """Returns a log entry as a JSON object on one line, without a line terminator.

    Args:
      level: One of `LEVELS`.
      logger: The name of the logger.
      message: The message.
      when: The time in seconds since the epoch, as from `time.time`; by default the current time.
      more: Further members of the object. Members that are `None` are omitted.
    """
    moment = datetime.datetime.fromtimestamp(time.time() if when is None else when, datetime.timezone.utc)
    entry = {"time": moment.isoformat(), "level": level, "logger": logger, "message": message, **more}
    return json.dumps({name: value for name, value in entry.items() if value is not None}, default=str)


def printed_as_json(text: bytes) -> bytes:
    """Returns the output of a function as JSON objects, one per non-empty line."""
    lines = text.decode("utf-8", "backslashreplace").splitlines()
    return "".join(json_line("info", "output", line) + "\n" for line in lines if line.strip()).encode()


def configure_logging(level: str, form: str, out: TextIO) -> None:
    """Configures logging to write to a stream.

    Args:
      level: The lowest level to log, one of `LEVELS`.
      form: The format, one of `FORMATS`.
      out: The stream.
    """
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        JsonFormatter() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)  # warnings in functions are logged too, because every line must have the format


# The maximum number of bytes of an unfinished line to buffer.
_LONGEST_LINE = 2**20


class _ForgivingFile(io.RawIOBase):
    """A file that ignores errors when it writes to its descriptor.

    It has no lock, because a child process that a function forks could inherit the lock in its locked state.
    """

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
    """A file that converts whole lines with `convert` before it writes them.

    One call of `print` writes several times, so an unfinished line is buffered until it is complete, its thread flushes
    the file, or `end` is called. Each thread has its own buffer, so no lock is needed.
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
        """Writes the unfinished lines of all threads."""
        for thread in list(self._begun):
            self._write_begun(thread)

    def _write_begun(self, thread: int) -> None:
        begun = self._begun.pop(thread, None)
        if begun:
            super().write(self._convert(bytes(begun)))


@contextlib.contextmanager
def all_output_to_standard_error(convert: Callable[[bytes], bytes] | None = None) -> Generator[TextIO]:
    """Redirects all output of the block to standard error, and ignores write errors.

    If standard error has been replaced by an object without a descriptor, the object is used unchanged: lines are not
    converted, and errors are not ignored.

    Args:
      convert: A function that converts the bytes of whole lines before they are written.

    Yields:
      A stream that writes to standard error, ignores errors, and does not convert lines.
    """
    descriptor = _descriptor_of(sys.stderr)
    if descriptor is None:
        with contextlib.redirect_stdout(sys.stderr):
            yield sys.stderr
        return
    plain = out = _stream(_ForgivingFile(descriptor), sys.stderr.encoding)
    converting = None if convert is None else _ConvertingFile(descriptor, convert)
    if converting is not None:
        # `_ConvertingFile` buffers the lines of each thread itself, so the stream must not buffer them.
        out = _stream(converting, sys.stderr.encoding, write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            yield plain
        finally:
            out.flush()  # an unfinished line
            if converting is not None:
                converting.end()


def _stream(file: _ForgivingFile, encoding: str, write_through: bool = False) -> TextIO:
    """Returns a text stream that writes after each line, or immediately if `write_through` is true."""
    raw = cast(BinaryIO, file)
    return io.TextIOWrapper(
        raw, encoding, "backslashreplace", line_buffering=not write_through, write_through=write_through
    )


def _descriptor_of(stream: object) -> int | None:
    """Returns the descriptor of a stream; `None` if it has none, or if the stream is missing (as under pythonw.exe)."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    with contextlib.suppress(OSError, ValueError):
        return stream.fileno()
    return None
