"""Files with a checked header, which are written whole or not at all.

| part | content |
| --- | --- |
| 8 bytes | the kind of file, such as `FEDSTATE` |
| 4 bytes | CRC-32 of the next two parts |
| 8 bytes | the length of the header |
| header | JSON: the format, the version of fedstack, and what the kind of file has |
| contents | from the next multiple of 64 bytes |

Numbers are little-endian.
"""

import contextlib
import json
import os
import stat
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs

from fedstack._version import __version__
from fedstack.errors import ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.synced_folders import sync_folder

ALIGNMENT = 64


class DamagedStateError(ProgramStateError):
    """Raised if a file is a program state but not as it was written."""


@attrs.frozen
class FileKind:
    """A kind of file.

    Attributes:
      magic: The first bytes of each file.
      format: The number of the format. Files with another number are refused.
      what: What such a file is, for messages.
    """

    magic: bytes
    format: int
    what: str

    @property
    def _head_bytes(self) -> int:
        return len(self.magic) + 12

    def head(self, fields: Mapping[str, object]) -> bytes:
        """Returns what precedes the contents of a file."""
        header = json.dumps({"format": self.format, "fedstack": __version__, **fields}).encode()
        length = len(header).to_bytes(8, "little")
        checked = zlib.crc32(header, zlib.crc32(length)).to_bytes(4, "little")
        return self.magic + checked + length + header + bytes(-(self._head_bytes + len(header)) % ALIGNMENT)

    @contextlib.contextmanager
    def open(self, path: Path) -> Generator[tuple[IO[bytes], Mapping[str, Any]], None, None]:
        """Opens a file, which is then at the start of its contents, and yields it with the fields of its header.

        Raises:
          FileNotFoundError: If the file does not exist.
          DamagedStateError: If the header is damaged.
          ProgramStateError: If the file cannot be read, is of another kind, or of a newer format.
        """
        with opened_regular(path, self.what) as file:
            fields, start = self._read_head(file, path)
            file.seek(start)
            yield file, fields

    def _read_head(self, file: IO[bytes], path: Path) -> tuple[Mapping[str, Any], int]:
        head = file.read(self._head_bytes)
        if not any(head) or (len(head) < self._head_bytes and self.magic.startswith(head[: len(self.magic)])):
            raise self.damaged(path, "its beginning")
        if not head.startswith(self.magic):
            raise ProgramStateError(
                f"Expected a {self.what} of fedstack in {path}, found another kind of file; remove it, or choose "
                "another folder"
            )
        length = int.from_bytes(head[len(self.magic) + 4 :], "little")
        # A damaged length may be huge.
        header = file.read(length) if length <= os.fstat(file.fileno()).st_size else b""
        checked = zlib.crc32(header, zlib.crc32(head[len(self.magic) + 4 :]))
        if len(header) != length or checked != int.from_bytes(head[len(self.magic) : len(self.magic) + 4], "little"):
            raise self.damaged(path, "its header")
        fields = json.loads(header)
        if fields["format"] != self.format:
            raise ProgramStateError(
                f"Expected format {self.format} in the {self.what} {path}, found format {fields['format']}, which "
                f"fedstack {fields['fedstack']} wrote; use that version or a newer one"
            )
        start = self._head_bytes + length + -(self._head_bytes + length) % ALIGNMENT
        if os.fstat(file.fileno()).st_size < start:
            raise self.damaged(path, "its end")
        return fields, start

    def damaged(self, path: Path, what: str) -> DamagedStateError:
        """Returns the error for a file of which a part is not as it was written."""
        return damaged(self.what, path, what)


@contextlib.contextmanager
def opened_regular(path: Path, what: str) -> Generator[IO[bytes], None, None]:
    """Opens a regular file to read it.

    Args:
      path: The path of the file.
      what: What it is, for messages.

    Raises:
      FileNotFoundError: If the file does not exist.
      ProgramStateError: If it cannot be read, also in the block, or is no regular file.
    """
    try:
        with open(path, "rb", buffering=0, opener=opened_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _not_regular(path, what)
            yield file
    except (FileNotFoundError, ProgramStateError):
        raise
    except OSError as error:
        if path.is_dir():
            raise _not_regular(path, what) from error
        raise ProgramStateError(f"Cannot read the {what} {path}: {text_of(error)}; check the disk") from error


def _not_regular(path: Path, what: str) -> ProgramStateError:
    return ProgramStateError(f"Expected a {what} in {path}, found no regular file; remove it, or choose another folder")


def damaged(what: str, path: Path, part: str) -> DamagedStateError:
    """Returns the error for a file of which a part is not as it was written."""
    return DamagedStateError(
        f"Expected the {what} {path} as it was written, found that {part} is damaged or missing, as after a failure of "
        "the disk; remove the file, and load an older version"
    )


def opened_at_once(path: str, flags: int) -> int:
    """Opens a file; a pipe, too, without waiting for somebody who writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_whole(path: Path, parts: Sequence["bytes | memoryview"]) -> None:
    """Writes a file, or replaces one, so that it has its old or its new content after any failure.

    Args:
      path: The path of the file.
      parts: The content.

    Raises:
      ProgramStateError: If the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")  # what a killed process has left is written over
    try:
        with removed_on_error(beside):
            with open(beside, "wb", buffering=0) as file:
                write_parts(file, parts)
                os.fsync(file.fileno())
            os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_parts(file: IO[bytes], parts: Sequence["bytes | memoryview"]) -> None:
    """Writes all parts to a file that has no buffer."""
    for part in _at_most(parts, 1 << 30):
        done = 0
        while done < len(part):
            done += file.write(part[done:])


def cannot_write(path: Path, error: OSError) -> ProgramStateError:
    """Returns the error for a file that cannot be written."""
    return ProgramStateError(
        f"Cannot write {path}: {text_of(error)}; what was there before is unchanged. Free some space, or allow writing "
        "to the folder, and run again"
    )


def _at_most(parts: Sequence["bytes | memoryview"], size: int) -> Iterator[memoryview]:
    """Yields the parts in pieces that the system writes in one call. Small parts are joined."""
    small = bytearray()
    for part in parts:
        if len(part) < 1 << 16:
            small += part
            continue
        if small:
            yield memoryview(bytes(small))
            small.clear()
        view = memoryview(part)
        yield from (view[start : start + size] for start in range(0, len(view), size))
    yield memoryview(bytes(small))


@contextlib.contextmanager
def removed_on_error(path: Path) -> Generator[None, None, None]:
    """Removes a file if the block raises an error."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
