"""Writes to standard error as long as that is possible, and drops what cannot be written.

What functions print at a worker goes there, and so do logs. A full disk, or a reader that has left, must not become an
error of a function that prints.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Generator
from typing import Any, BinaryIO, TextIO, cast


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
    """Writes what `convert` makes of the bytes that it is given."""

    def __init__(self, descriptor: int, convert: Callable[[bytes], bytes]) -> None:
        super().__init__(descriptor)
        self._convert = convert

    def write(self, data: Any, /) -> int:
        given = bytes(data)
        super().write(self._convert(given))
        return len(given)


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
    plain = _stream(_ForgivingFile(descriptor), sys.stderr.encoding)
    out = plain if convert is None else _stream(_ConvertingFile(descriptor, convert), sys.stderr.encoding)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            yield plain
        finally:
            out.flush()  # a line without an end


def _stream(file: _ForgivingFile, encoding: str) -> TextIO:
    return io.TextIOWrapper(cast(BinaryIO, file), encoding, "backslashreplace", line_buffering=True)


def _descriptor_of(stream: object) -> int | None:
    """Returns the descriptor of a stream; `None` if it has none, or there is no stream (as under pythonw.exe)."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    with contextlib.suppress(OSError, ValueError):
        return stream.fileno()
    return None
