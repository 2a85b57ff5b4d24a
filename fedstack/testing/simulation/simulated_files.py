"""What of the files in a folder a loss of power leaves: what was synced, and any part of all else."""

import contextlib
import os
import random
import stat
from collections.abc import Callable, Generator
from pathlib import Path

# What a disk writes as a whole.
_SECTOR = 512


class SimulatedFiles:
    """The files of one folder. A content is safe once its file has been synced, a name once the folder has been.

    Args:
      folder: The folder; it need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # What is safe: which file has which name, and its content. Files are known by their inodes.
        self._names: dict[str, int] = {}
        self._contents: dict[int, bytes] = {}

    @contextlib.contextmanager
    def watched(self, before_sync: Callable[[], None]) -> Generator[None, None, None]:
        """Notes what is synced in a block.

        Args:
          before_sync: Is called before each time; an error of it is one of syncing.
        """

        def fsync(descriptor: int) -> None:
            before_sync()
            self._synced(os.fstat(descriptor))

        real, os.fsync = os.fsync, fsync
        try:
            yield
        finally:
            os.fsync = real

    def _synced(self, found: os.stat_result) -> None:
        if stat.S_ISDIR(found.st_mode):
            if os.path.samestat(found, self._folder.stat()):
                self._names = self._found()
        else:
            for name, file in self._found().items():
                if file == found.st_ino:
                    self._contents[file] = (self._folder / name).read_bytes()

    def lose(self, chance: random.Random) -> None:
        """Lets the power fail; what is there afterwards is safe."""
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
            return {entry.name: entry.inode() for entry in entries}

    def __repr__(self) -> str:
        return f"<SimulatedFiles in {self._folder}>"


def torn(before: bytes, after: bytes, share: float, chance: random.Random) -> bytes:
    """Returns what is on a disk that was to have one content in place of another when the power failed."""
    size = len(before) + int(share * (len(after) - len(before)))
    old = before[:size].ljust(size, b"\0")
    found = bytearray(old)
    for start in range(0, size, _SECTOR):
        end = min(start + _SECTOR, size, len(after))
        if old[start:end] != after[start:end] and chance.random() < share:
            found[start:end] = after[start:end]
    return bytes(found)
