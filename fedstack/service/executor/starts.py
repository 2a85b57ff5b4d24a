"""Runs values of a session, a batch of them at a time, and tells how that went without sending what they yield."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence

from fedstack.computations.leaves.work_scope import current_scope, set_scope
from fedstack.contexts.invocation import telling_path
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.concurrency.progress import ProgressCounts, ToldCounts
from fedstack.foundations.traceback_filter import without_frames
from fedstack.proto.extensions_pb2 import StartResponse, Status
from fedstack.service.executor.sessions.held_values import SharedComputation
from fedstack.service.executor.sessions.service_core import ServiceCore
from fedstack.service.executor.sessions.session import Session
from fedstack.transport.wire.status import Code, StatusError, details_of

# When some of a batch have ended, so long is waited for others to end too,
_GATHER_SECONDS = 0.002
# unless those have run for longer than this.
_QUICK_SECONDS = 0.02


class Starts:
    """Runs what clients start.

    Args:
      core: The sessions, and the rules for them.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core

    async def run(
        self, session: Session, values: Sequence[str], progress: ProgressCounts
    ) -> list[StartResponse.Outcome]:
        """Runs values that are in a session, or joins them; returns the outcomes of those that end first."""
        outcomes: list[StartResponse.Outcome] = []
        pulls: dict[str, SharedComputation] = {}
        now, together = asyncio.get_running_loop().time(), ToldCounts()
        set_scope(current_scope().replace(progress=together))  # of this task only
        for value_id in dict.fromkeys(values):
            try:
                pulls[value_id] = pull = self._core.pull(session, value_id, together)
            except StatusError as error:
                outcomes.append(_outcome(value_id, error))
            else:
                progress.watch(pull.progress)
                session.started.running.setdefault(value_id, now)
        slow = {value_id for value_id, began in session.started.running.items() if now - began > _QUICK_SECONDS}
        for value_id in await _ended(pulls, slow, at_once=bool(outcomes)):
            outcomes.append(_told(session, value_id, pulls[value_id]))
        return outcomes


async def _ended(pulls: Mapping[str, SharedComputation], slow: Collection[str], *, at_once: bool) -> list[str]:
    """Returns which have ended, once some have; slow ones hold up nothing."""
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(pull.awaited()) for pull in pulls.values()]
        if waiting and not at_once and not all(task.done() for task in waiting):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            others = [task for value_id, task in zip(pulls, waiting) if not (task.done() or value_id in slow)]
            if others:
                await asyncio.wait(others, timeout=_GATHER_SECONDS)
        return [value_id for (value_id, _), task in zip(pulls.items(), waiting) if task.done()]


def _told(session: Session, value_id: str, pull: SharedComputation) -> StartResponse.Outcome:
    if session.started.running.pop(value_id, None) is not None:
        session.started.ended += 1
    try:
        with telling_path(session.executor):
            pull.result()
    except asyncio.CancelledError:
        return _outcome(value_id, StatusError(Code.CANCELLED, "It was cancelled"))
    except Exception as error:
        session.started.failed += 1
        return _outcome(value_id, error)
    value = session.find_if_there(value_id)
    if isinstance(value, VerbValue) and value.keeps_payload:
        session.delivered(value_id)  # whoever computes it again gets what it keeps
    return StartResponse.Outcome(id=value_id)


def _outcome(value_id: str, error: Exception) -> StartResponse.Outcome:
    told = StartResponse.Outcome(id=value_id, error=Status.FromString(details_of(error)))
    without_frames(error)
    return told
