"""Notes the last commit of a journal in a file beside it, where a start sees that the journal has lost its end."""

import contextlib
import os
import zlib
from pathlib import Path

from google.protobuf.message import DecodeError

from fedstack.proto.data_service_pb2 import Commit
from fedstack.service.data.dispatcher.private_folder import open_private

_CHECK_BYTES = 4


class LastCommit:
    """The file. It is written after each commit, and not synced: after a loss of power it may be behind, never ahead.

    Args:
      path: Where it is; it is made with the first commit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Commit | None:
        """Returns what was noted; `None` if there is nothing that can be read.

        Raises:
          OSError: If the file cannot be opened.
        """
        try:
            found = self.path.read_bytes()
        except FileNotFoundError:
            return None
        content, check_sum = found[:-_CHECK_BYTES], found[-_CHECK_BYTES:]
        if not content or check_sum != _check_sum(content):
            return None
        try:
            return Commit.FromString(content)
        except DecodeError:
            return None

    def write(self, commit: Commit) -> None:
        """Notes a commit. What cannot be written is left out: the journal has it, and this is a second look at it."""
        content = commit.SerializeToString()
        with contextlib.suppress(OSError):
            # In place of what is there, which is as long.
            file = open_private(str(self.path), os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0))
            try:
                os.write(file, content + _check_sum(content))
            finally:
                os.close(file)

    def clear(self) -> None:
        """Notes that nothing is known.

        Raises:
          OSError: If the file cannot be removed.
        """
        self.path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<LastCommit in {self.path}>"


def _check_sum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECK_BYTES, "big")
