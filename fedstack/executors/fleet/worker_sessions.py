"""Opens the sessions at workers before a phase begins, and does without workers that have no room for one."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from fedstack.errors import DeadlineExceededError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.fleet.workers import Worker, Workers
from fedstack.executors.remote.remote_phases import RemotePhases

_logger = logging.getLogger(__name__)
# How long a worker that had no room is not asked again, as long as others have some.
_FULL_SECONDS = 5.0


class WorkerSessions:
    """One session at each worker, for all phases, whatever their numbers of clients.

    Args:
      workers: The workers.
      make_phases: Makes what runs phases at a worker.
      clock: Tells the time in seconds.
    """

    def __init__(
        self,
        workers: Workers,
        make_phases: Callable[[Worker], RemotePhases],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._make_phases = make_phases
        self._clock = clock
        self._phases: dict[Worker, RemotePhases] = {}
        self._full: dict[Worker, float] = {}  # when each was found so

    def __iter__(self) -> Iterator[RemotePhases]:
        return iter(list(self._phases.values()))

    def at(self, worker: Worker) -> RemotePhases:
        """Returns what runs phases at a worker; it stays open."""
        phases = self._phases.get(worker)
        if phases is None:
            # Another thread may have been quicker.
            phases = self._phases.setdefault(worker, self._make_phases(worker))
        return phases

    async def with_room(self, ready: Sequence[Worker], most: int) -> list[Worker]:
        """Returns the first workers that have room for a session, which is open then.

        Args:
          ready: The workers to choose from.
          most: How many to choose at most.

        Raises:
          ResourceLimitError: If none has room.
          WorkerUnavailableError: If one has gone away meanwhile.
        """
        chosen = ready[:most]
        if not self._full and all(map(self._is_open, chosen)):
            return list(chosen)
        now = self._clock()
        lately = [worker for worker in ready if now - self._full.get(worker, -_FULL_SECONDS) < _FULL_SECONDS]
        refusals: list[ResourceLimitError] = []
        for candidates in ([worker for worker in ready if worker not in lately], lately):
            found = await self._opened(candidates, most, refusals)
            if found:
                return found
        raise refusals[0]

    async def _opened(
        self, candidates: Sequence[Worker], most: int, refusals: list[ResourceLimitError]
    ) -> list[Worker]:
        found: list[Worker] = []
        while candidates and len(found) < most:
            asked, candidates = candidates[: most - len(found)], candidates[most - len(found) :]
            answers = await asyncio.gather(*map(self._refusal, asked))
            found += [worker for worker, answer in zip(asked, answers) if answer is None]
            refusals += [answer for answer in answers if answer is not None]
        return found

    async def _refusal(self, worker: Worker) -> ResourceLimitError | None:
        """Opens the session at a worker, if there is none; returns why there is no room for it."""
        if self._is_open(worker):
            return None
        try:
            await self.at(worker).open()
        except ResourceLimitError as error:
            if worker not in self._full and len(self._workers) > 1:  # else the caller gets it as an error
                _logger.warning("Doing without the worker at %s: %s", worker.address, error)
            self._full[worker] = self._clock()
            return error
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            raise self.lost(worker, error) from error
        self._full.pop(worker, None)
        return None

    def _is_open(self, worker: Worker) -> bool:
        # Of a peer that knows no phases each executor has a session of its own.
        return not worker.runs_phases or self.at(worker).has_session

    def lost(self, worker: Worker, error: Exception) -> WorkerUnavailableError:
        """Takes note that a worker has failed; returns what to raise for that."""
        found = worker.stub.loss() or error
        self._workers.failed(worker, found)
        # Not asked of the worker: the transport's loop looks after it from here on, and may have found it well again.
        address, cause = worker.address, worker.line_of(found)
        lost = WorkerUnavailableError(f"Expected the worker at {address} to finish its part, found it gone: {cause}")
        lost.causes = {address: cause}
        return lost

    def __repr__(self) -> str:
        return f"<WorkerSessions at {len(self._phases)} workers>"
