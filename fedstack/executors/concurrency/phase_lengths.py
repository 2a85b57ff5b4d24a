"""Records how long phases took. The next run of a phase with the same program probably takes as long."""

import math

import attrs

from fedstack.computations.plan.program import Program
from fedstack.computations.plan.tasks import Phase
from fedstack.foundations.caches import made_once

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


def is_long(phase: Phase) -> bool:
    """Returns whether a phase is long, as far as is known."""
    return _length_of(phase.program).seconds >= _LONG_SECONDS
