"""Simulates the effect of a power loss on files: synced data survives, and any part of the other data may."""

import contextlib
import os
import random
import stat
from collections.abc import Callable, Generator
from pathlib import Path

# The number of bytes that a disk writes atomically.
_SECTOR = 512


class SimulatedFiles:
    """The files of a folder. Content is safe once its file has been synced, and a name once the folder has been synced.

    Args:
      folder: The folder, without those in it. It need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The safe state: the file of each name, and the content of each file. Files are identified by their inodes.
        self._names: dict[str, int] = {}
        self._contents: dict[int, bytes] = {}

    @contextlib.contextmanager
    def watched(self, before_sync: Callable[[], None]) -> Generator[None, None, None]:
        """Records the calls of `os.fsync` in the block.

        Args:
          before_sync: A function that is called before each sync. An error that it raises is raised by `os.fsync`.
        """

        def fsync(descriptor: int) -> None:
            before_sync()
            self.note_sync(descriptor)

        real, os.fsync = os.fsync, fsync
        try:
            yield
        finally:
            os.fsync = real

    def note_sync(self, descriptor: int) -> None:
        """Makes what an open file or folder has now safe; for callers that replace `os.fsync` themselves."""
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            if self._folder.exists() and os.path.samestat(found, self._folder.stat()):
                self._names = self._found()
        else:
            for name, file in self._found().items():
                if file == found.st_ino:
                    self._contents[file] = (self._folder / name).read_bytes()

    def lose(self, chance: random.Random) -> None:
        """Simulates a power loss. The files that it leaves are safe."""
        found = self._found()
        written = {file: (self._folder / name).read_bytes() for name, file in found.items()}
        for name in sorted({*found, *self._names}):
            new, old = found.get(name), self._names.get(name)
            file = new if new == old or chance.random() < 0.5 else old
            if file is None:
                (self._folder / name).unlink(missing_ok=True)
                continue
            safe = self._contents.get(file, b"")
            content = written.get(file, safe)
            if content != safe:
                content = torn(safe, content, chance.choice((0.0, chance.random(), 1.0)), chance)
            if file != new or content != written[file]:
                (self._folder / name).write_bytes(content)
        self._names = self._found()
        self._contents = {file: (self._folder / name).read_bytes() for name, file in self._names.items()}

    def _found(self) -> dict[str, int]:
        if not self._folder.exists():
            return {}
        with os.scandir(self._folder) as entries:
            return {entry.name: entry.inode() for entry in entries if entry.is_file()}

    def __repr__(self) -> str:
        return f"<SimulatedFiles in {self._folder}>"


def torn(before: bytes, after: bytes, share: float, chance: random.Random) -> bytes:
    """Returns the content of a file after a power loss during a write.

    Args:
      before: The content before the write.
      after: The content that was being written.
      share: The share of the write that has reached the disk, from 0 to 1.
      chance: Decides which sectors have been written.
    """
    size = len(before) + int(share * (len(after) - len(before)))
    old = before[:size].ljust(size, b"\0")
    found = bytearray(old)
    for start in range(0, size, _SECTOR):
        end = min(start + _SECTOR, size, len(after))
        if old[start:end] != after[start:end] and chance.random() < share:
            found[start:end] = after[start:end]
    return bytes(found)
