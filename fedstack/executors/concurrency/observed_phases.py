"""Emits the events of phases, or of parts of phases, to observers."""

import contextlib
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.program import Program
from fedstack.foundations.caches import made_once
from fedstack.observe.events import Folded, PhaseEnded, PhaseStarted
from fedstack.observe.observers import observers

_MOST_NAMES = 4
_MAX_NAME = 100


@made_once
def name_of(program: Program) -> str:
    """Returns the names of the functions in a program, in the order in which they run."""
    names = dict.fromkeys(step.operation.name[:_MAX_NAME] for step in program.steps)
    shown = list(names)[:_MOST_NAMES]
    return ", ".join(shown + ["…"] * (len(names) > len(shown)))


@attrs.define
class PhaseNote:
    """Data about a phase that is collected while the phase runs on a worker.

    Attributes:
      bytes_sent: The number of bytes sent to the worker.
      bytes_received: The number of bytes of the worker's response.
    """

    bytes_sent: int = 0
    bytes_received: int = 0

    def folded(self, what: str, clients: int, seconds: float) -> None:
        """Emits the event for the completed aggregations of the phase.

        Args:
          what: The URIs of the aggregations.
          clients: The number of clients.
          seconds: The time that was needed to compute the results.
        """
        observers.tell(Folded(**current_scope().span.ids, what=what, clients=clients, seconds=seconds))


_UNOBSERVED = contextlib.nullcontext()


def observed_phase(program: Program, clients: range, worker: str = "") -> AbstractContextManager[PhaseNote | None]:
    """Returns a context manager that emits the events of a phase, or of a part of a phase.

    The block of the context manager runs in the span of the phase. Without observers, the context manager does nothing.

    Args:
      program: The program of the clients.
      clients: The indices of the clients.
      worker: The address of the worker; empty for a phase that runs in this process.

    Returns:
      A context manager that yields a `PhaseNote`, or `None` without observers.
    """
    return _observed(program, clients, worker) if observers.present else _UNOBSERVED


@contextlib.contextmanager
def _observed(program: Program, clients: range, worker: str) -> Generator[PhaseNote]:
    outer = current_scope()
    span, note, error = outer.span.new_phase(), PhaseNote(), ""
    known: dict[str, Any] = {
        **outer.span.ids,
        "phase": span.id,
        "functions": name_of(program),
        "first_client": clients.start,
        "clients": len(clients),
        "worker": worker,
    }
    observers.tell(PhaseStarted(**known))
    begin = time.perf_counter()
    try:
        with attrs.evolve(outer, span=span).entered():
            yield note
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        seconds = time.perf_counter() - begin
        observers.tell(
            PhaseEnded(
                **known,
                seconds=seconds,
                bytes_sent=note.bytes_sent,
                bytes_received=note.bytes_received,
                error=error,
            )
        )
