"""Shares arrays with other processes of this machine by a file in memory, which is written once.

The file has no name. Other processes open it through this process's file descriptor, so it disappears with the last of
these processes, however they end. Only Linux has such files.
"""

import contextlib
import mmap
import os
import pickle
import weakref
from collections.abc import Callable, Sequence

from fedstack.foundations.segments import Memory

# Sending smaller arrays with each task costs less than a file.
LEAST_BYTES = 1 << 20
_ALIGNMENT = 64


class MemoryFile:
    """Arrays in a file in memory. Another process that unpickles this object gets the arrays as read-only views.

    The file is closed together with this object. A process that unpickles the object later gets no arrays, because an
    error while unpickling would end a process of a pool.

    Args:
      memory: The arrays, and rows of arrays.

    Raises:
      OSError: If the system has no such files, or no memory for one.
    """

    def __init__(self, memory: Sequence[Memory]) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files in memory")
        buffers: list[pickle.PickleBuffer] = []
        self._head = pickle.dumps(list(memory), protocol=5, buffer_callback=buffers.append)
        self._spans: list[tuple[int, int]] = []
        self._file = os.memfd_create("fedstack")
        weakref.finalize(self, os.close, self._file)
        end = 0
        for buffer in buffers:
            view = buffer.raw()
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + view.nbytes
            self._spans.append((start, end))
            _write(self._file, view, start)

    def __reduce__(self) -> tuple[Callable[..., Sequence[Memory]], tuple[object, ...]]:
        return opened, (f"/proc/{os.getpid()}/fd/{self._file}", self._head, self._spans)


def _write(file: int, view: memoryview, offset: int) -> None:
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def opened(path: str, head: bytes, spans: Sequence[tuple[int, int]]) -> Sequence[Memory]:
    """Returns the arrays of a file; none if the file is gone."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            content = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(file)
        found: Sequence[Memory] = pickle.loads(head, buffers=[content[start:stop] for start, stop in spans])
        return found
    return []
