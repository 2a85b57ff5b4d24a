"""Sends an input that several phases share to a peer only once; later phases refer to the peer's copy."""

import uuid
import weakref
from collections.abc import Iterable

from fedstack.computations.values.columns import SharedColumn
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.proto.extensions_pb2 import PhaseRequest

# The minimum size of inputs to keep. For smaller inputs, sending them again is cheaper than disposing of a copy.
_WORTH_KEEPING_BYTES = 16 * 1024


class PhaseCopies:
    """The inputs of a phase that the peer has already kept, and the inputs that the peer should keep.

    Args:
      session: The session of the phase. A kept input is disposed of once its column is garbage-collected.
    """

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._offered: dict[str, SharedColumn] = {}

    def refer(self, column: SharedColumn, message: PhaseRequest.Input) -> bool:
        """Refers to the peer's copy of a column, if there is one.

        Args:
          column: The column.
          message: The message of the input, in which the id of the copy is set.

        Returns:
          Whether the peer has a copy of the column.
        """
        copy = column.copies.get(self._session)
        if copy is None:
            return False
        message.kept = copy
        return True

    def offer(self, column: SharedColumn, message: PhaseRequest.Input, segment_bytes: int) -> None:
        """Asks the peer to keep a column, if the column is large enough.

        Args:
          column: The column.
          message: The message of the input, into which the column was packed.
          segment_bytes: The number of bytes that are sent separately from the message.
        """
        if segment_bytes + message.value.ByteSize() >= _WORTH_KEEPING_BYTES:
            message.keep = uuid.uuid4().hex
            self._offered[message.keep] = column

    def settle(self, kept: Iterable[str]) -> None:
        """Records which columns the peer has kept, given their ids."""
        for copy in kept:
            column = self._offered.pop(copy, None)
            if column is not None:
                column.copies[self._session] = copy
                weakref.finalize(column, self._session.forget, copy).atexit = False

    def give_up(self) -> None:
        """Disposes of columns that the peer may have kept for a phase whose response was not received."""
        for copy in self._offered:
            self._session.forget(copy)
