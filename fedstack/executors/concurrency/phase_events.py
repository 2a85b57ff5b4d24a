"""Tells observers of client phases while they run."""

import contextlib
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.program import Program
from fedstack.executors.concurrency.progress import name_of
from fedstack.observe.events import Folded, PhaseEnded, PhaseStarted
from fedstack.observe.observers import observers


@attrs.define
class PhaseNote:
    """What is found out of a phase while it runs at a worker.

    Attributes:
      bytes_sent: What went there.
      bytes_received: What came back.
    """

    bytes_sent: int = 0
    bytes_received: int = 0

    def folded(self, what: str, clients: int, seconds: float) -> None:
        """Tells that the aggregations of the phase have their results."""
        observers.tell(Folded(**current_scope().span.ids, what=what, clients=clients, seconds=seconds))


_UNTOLD = contextlib.nullcontext()


def told_phase(program: Program, clients: range, worker: str = "") -> AbstractContextManager[PhaseNote | None]:
    """Tells observers of a phase, or a part of one, for as long as the block runs; without observers it does nothing.

    What runs in the block is within the span of the phase.

    Args:
      program: What clients run.
      clients: The clients.
      worker: The address of the worker; empty for what runs here.

    Returns:
      What gives the place for what is found out; `None` where nobody is to be told.
    """
    return _told(program, clients, worker) if observers.present else _UNTOLD


@contextlib.contextmanager
def _told(program: Program, clients: range, worker: str) -> Generator[PhaseNote]:
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
