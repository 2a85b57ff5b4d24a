"""Records how phases went. The next run of a phase with the same program probably goes the same way."""

import math

import attrs

from fedstack.computations.plan.program import Program
from fedstack.computations.plan.tasks import Phase
from fedstack.foundations.caches import made_once

_LONG_SECONDS = 1.0
# After clients may have ended workers, so many phases without that are no proof that the next one is.
_WARY_PHASES = 8


@attrs.define(eq=False)
class _Record:
    """How phases with a program went.

    Attributes:
      seconds: How long the last one took; infinity before the first one.
      wary: For how many further phases clients are likelier than others to end workers.
    """

    seconds: float = math.inf
    wary: int = 0


@made_once
def _record_of(program: Program) -> _Record:
    return _Record()


def note_length(phase: Phase, seconds: float) -> None:
    """Records how long a phase took that has ended without an error."""
    record = _record_of(phase.program)
    record.seconds, record.wary = seconds, max(0, record.wary - 1)


def note_losses(phase: Phase) -> None:
    """Records that clients of a phase may have ended workers."""
    _record_of(phase.program).wary = _WARY_PHASES


def is_harmless(phase: Phase) -> bool:
    """Returns whether phases with the same program have run, and the last ones without ending workers."""
    record = _record_of(phase.program)
    return record.seconds < math.inf and not record.wary


def is_long(phase: Phase) -> bool:
    """Returns whether a phase is long, as far as is known."""
    return _record_of(phase.program).seconds >= _LONG_SECONDS
