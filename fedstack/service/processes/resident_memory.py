"""Finds out how much memory this process has."""

import os
import sys


def resident_bytes() -> int:
    """Returns the bytes of memory that this process has; the most that it has had where only that is known, else 0."""
    try:
        with open("/proc/self/statm") as file:  # on Linux: sizes in pages, of which the second is the resident one
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return _most_resident_bytes()


def _most_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
