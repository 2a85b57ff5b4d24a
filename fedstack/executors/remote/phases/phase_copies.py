"""Sends what several phases read to a peer once, and refers to it from then on."""

import uuid
import weakref
from collections.abc import Iterable

from fedstack.computations.values.columns import SharedColumn
from fedstack.executors.remote.sessions.remote_sessions import RemoteSession
from fedstack.proto.extensions_pb2 import PhaseRequest

# What is smaller is sent again sooner than it is disposed of.
_WORTH_KEEPING_BYTES = 16 * 1024


class PhaseCopies:
    """The inputs of one phase that its peer has already, and those that it is asked to keep.

    Args:
      session: Where the phase runs. What is kept there is disposed of when nobody refers to the column any more.
    """

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._offered: dict[str, SharedColumn] = {}

    def refer(self, column: SharedColumn, message: PhaseRequest.Input) -> bool:
        """Writes the id under which the peer has a column; tells whether it has it."""
        copy = column.copies.get(self._session)
        if copy is None:
            return False
        message.kept = copy
        return True

    def offer(self, column: SharedColumn, message: PhaseRequest.Input, segment_bytes: int) -> None:
        """Asks the peer to keep a column that was just packed, of which so many bytes are beside the message."""
        if segment_bytes + message.value.ByteSize() >= _WORTH_KEEPING_BYTES:
            message.keep = uuid.uuid4().hex
            self._offered[message.keep] = column

    def settle(self, kept: Iterable[str]) -> None:
        """Takes note of what the peer says that it kept."""
        for copy in kept:
            column = self._offered.pop(copy, None)
            if column is not None:
                column.copies[self._session] = copy
                weakref.finalize(column, self._session.forget, copy).atexit = False

    def give_up(self) -> None:
        """Disposes of what the peer may have kept of a phase whose answer did not come."""
        for copy in self._offered:
            self._session.forget(copy)
