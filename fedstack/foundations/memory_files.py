"""Shares arrays with other processes of this machine by a file in memory, which is written once.

The file has no name. Other processes open it through this process's file descriptor, or are sent the descriptor, so it
disappears with the last of these processes, however they end. Only Linux has such files.
"""

import contextlib
import mmap
import os
import pickle
import socket
import stat
import struct
import sys
import weakref
from collections.abc import Callable, Sequence

from fedstack.foundations.segments import Memory

if sys.platform == "linux":
    import fcntl

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
        buffers: list[pickle.PickleBuffer] = []
        self._head = pickle.dumps(list(memory), protocol=5, buffer_callback=buffers.append)
        self._file = _new_file()
        weakref.finalize(self, os.close, self._file)
        self._spans = _write(self._file, [buffer.raw() for buffer in buffers])

    def __reduce__(self) -> tuple[Callable[..., Sequence[Memory]], tuple[object, ...]]:
        return opened, (f"/proc/{os.getpid()}/fd/{self._file}", self._head, self._spans)


def _new_file() -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory")
    return os.memfd_create("fedstack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _write(file: int, views: Sequence[memoryview]) -> list[tuple[int, int]]:
    """Writes memory to a file, and returns where in the file it starts and ends."""
    spans: list[tuple[int, int]] = []
    end = 0
    for view in views:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + view.nbytes
        spans.append((start, end))
        rest, offset = view, start
        while rest:
            written = os.pwrite(file, rest, offset)
            rest, offset = rest[written:], offset + written
    return spans


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


# Whether this system has files in memory whose content can be fixed, in the byte order of arrays that are sent.
HAS_SEALS = sys.platform == "linux" and hasattr(os, "memfd_create") and sys.byteorder == "little"


class SealedFile:
    """Memory in a file that nobody can change. Its descriptor can be sent to other processes, even of other users.

    The file is closed together with this object.

    Args:
      views: The memory to copy.

    Attributes:
      descriptor: The file descriptor.
      starts: Where in the file the memory of each view starts.

    Raises:
      OSError: If the system has no such files, or no memory for one.
    """

    def __init__(self, views: Sequence[memoryview]) -> None:
        self.descriptor = _new_file()
        weakref.finalize(self, os.close, self.descriptor)
        self.starts = [start for start, _ in _write(self.descriptor, views)]
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)


# A mapped file takes a file descriptor. If peers send more files, their content is received instead.
_MOST_MAPPED = 128
_mapped: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()
# Nobody has more in memory. A file with holes may seem to, and would fill the address space.
_MOST_FILE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if HAS_SEALS else 0


class ReceivedFile:
    """A file that another process has sent, of whatever kind.

    Args:
      descriptor: The file descriptor. This object closes it, at the latest when it is garbage-collected.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._content: memoryview | None = None
        self.close = weakref.finalize(self, _close, descriptor)

    def view(self, start: int, size: int) -> memoryview | None:
        """Returns a part of the file as read-only memory, which stays valid after the file has been closed.

        Returns:
          The memory; `None` if the file cannot be relied on, does not have this part, or has been closed.
        """
        if not self.close.alive:
            return None
        content = self._content = _mapped_content(self._descriptor) if self._content is None else self._content
        return content[start : start + size] if start + size <= len(content) else None

    def forget(self) -> None:
        """Closes the file, and no longer refers to its content. Idempotent."""
        self.close()
        self._content = None


def _close(descriptor: int) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return
    with socket.socket(fileno=descriptor) as found, contextlib.suppress(OSError):
        # Closing a socket may block for as long as its owner has chosen.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))


def _mapped_content(descriptor: int) -> memoryview:
    """Returns all of a file; empty if its sender could still change it, or if it is not to be mapped."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        # Whoever reads memory behind the end of a file that was truncated meanwhile is killed.
        is_fixed = seals & fcntl.F_SEAL_WRITE and seals & fcntl.F_SEAL_SHRINK
        if is_fixed and len(_mapped) < _MOST_MAPPED and os.fstat(descriptor).st_size <= _MOST_FILE_BYTES:
            content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            _mapped.add(content)
            return memoryview(content)
    except (OSError, ValueError):  # of what is no such file, or without descriptors or address space
        pass
    return memoryview(b"")
