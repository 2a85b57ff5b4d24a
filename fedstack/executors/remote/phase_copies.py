"""Sends inputs that several phases share to a peer once, and refers to them from then on."""

import uuid
import weakref
from collections.abc import Iterable

from fedstack.computations.values.columns import SharedColumn
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.proto.extensions_pb2 import PhaseRequest

# Sending a smaller input again is cheaper than disposing of it.
_WORTH_KEEPING_BYTES = 16 * 1024


class PhaseCopies:
    """The inputs of one phase that its peer already has, and the inputs that it is asked to keep.

    Args:
      session: The session of the phase. Kept inputs are disposed of once nothing refers to their columns anymore.
    """

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._offered: dict[str, SharedColumn] = {}

    def refer(self, column: SharedColumn, message: PhaseRequest.Input) -> bool:
        """Writes the id of a column at the peer; returns whether the peer has the column."""
        copy = column.copies.get(self._session)
        if copy is None:
            return False
        message.kept = copy
        return True

    def offer(self, column: SharedColumn, message: PhaseRequest.Input, segment_bytes: int) -> None:
        """Asks the peer to keep a column that was just packed with `segment_bytes` bytes beside the message."""
        if segment_bytes + message.value.ByteSize() >= _WORTH_KEEPING_BYTES:
            message.keep = uuid.uuid4().hex
            self._offered[message.keep] = column

    def settle(self, kept: Iterable[str]) -> None:
        """Records the columns that the peer reports that it kept."""
        for copy in kept:
            column = self._offered.pop(copy, None)
            if column is not None:
                column.copies[self._session] = copy
                weakref.finalize(column, self._session.forget, copy).atexit = False

    def give_up(self) -> None:
        """Disposes of columns that the peer may have kept for a phase whose answer did not arrive."""
        for copy in self._offered:
            self._session.forget(copy)
