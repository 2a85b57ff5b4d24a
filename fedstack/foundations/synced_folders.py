"""Makes the names of files survive a power failure."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Syncs a folder, so that a file that was renamed or removed still has its new name, or none, after a crash."""
    if os.name != "posix":  # on other systems, folders cannot be opened and need no sync
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
