"""Sends inputs to a peer only once; what follows refers to the peer's copy.

This holds for inputs that several phases read, and for large values that all clients of a long phase share: a worker
that takes over clients of another one already has them.
"""

import math
import uuid
import weakref
from collections.abc import Iterable, Sequence

import attrs

from fedstack.computations.plan.program import Program
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.values.columns import ConstantColumn, SharedColumn, shared_bytes
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.foundations.caches import made_once
from fedstack.proto.extensions_pb2 import PhaseRequest

# The minimum size of inputs to keep. For smaller inputs, sending them again is cheaper than disposing of a copy.
_WORTH_KEEPING_BYTES = 16 * 1024
# Values that all clients of a phase share are kept from this size on, unless the phase was shorter than this before.
_SHARED_BYTES = 1 << 20
_LONG_SECONDS = 1.0


@attrs.define(eq=False)
class _Length:
    """How long the last phase with a program took, in seconds; infinity before the first phase."""

    seconds: float = math.inf


@made_once
def _length_of(program: Program) -> _Length:
    return _Length()


def note_length(phase: Phase, seconds: float) -> None:
    """Records how long a phase took."""
    _length_of(phase.program).seconds = seconds


def has_run(phase: Phase) -> bool:
    """Returns whether a phase with the same program has ended without an error."""
    return _length_of(phase.program).seconds < math.inf


def sent_once(phase: Phase, inputs: Sequence[object]) -> list[object]:
    """Returns the inputs of a phase, of which the large ones that all clients share are sent to each peer only once.

    A peer disposes of such values with a delay. After short phases, it would have the values of several phases.
    """
    if _length_of(phase.program).seconds < _LONG_SECONDS:
        return list(inputs)
    return [
        SharedColumn(value) if isinstance(value, ConstantColumn) and shared_bytes([value]) >= _SHARED_BYTES else value
        for value in inputs
    ]


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
                weakref.finalize(column.whole, self._session.forget, copy).atexit = False

    def give_up(self) -> None:
        """Disposes of columns that the peer may have kept for a phase whose response was not received."""
        for copy in self._offered:
            self._session.forget(copy)
