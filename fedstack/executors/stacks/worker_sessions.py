"""Opens the sessions at workers before a phase begins, and does without workers that have no room for one."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from fedstack.errors import DeadlineExceededError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.remote.phases.remote_phases import RemotePhases
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.membership.member import MemberState


class WorkerSessions:
    """One session at each worker, for all phases, whatever their numbers of clients.

    Args:
      workers: The workers.
      make_phases: Makes what runs phases at a worker.
    """

    def __init__(self, workers: Workers, make_phases: Callable[[Worker], RemotePhases]) -> None:
        self._workers = workers
        self._make_phases = make_phases
        self._phases: dict[Worker, RemotePhases] = {}

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
        if len(self._phases) > len(self._workers.members):
            for worker in [worker for worker in self._phases if worker.state is MemberState.REMOVED]:
                self._phases.pop(worker, None)  # its session ends with the last phase that runs there
        chosen = ready[:most]
        if all(worker.refusal is None for worker in ready) and all(map(self._is_open, chosen)):
            return list(chosen)
        refusals: list[ResourceLimitError] = []
        for candidates in self._workers.by_room(ready):
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
            self._workers.full(worker, error)
            return error
        except (WorkerUnavailableError, DeadlineExceededError) as error:
            raise self.lost(worker, error) from error
        self._workers.has_room(worker)
        return None

    def _is_open(self, worker: Worker) -> bool:
        # Of a peer that knows no phases each executor has a session of its own.
        return not worker.features.phases or self.at(worker).has_session

    def lost(self, worker: Worker, error: Exception) -> WorkerUnavailableError:
        """Records that a worker has failed; returns what to raise for that."""
        # The cause is not the worker's: membership looks after it from here on, and may have found it well again.
        address, cause = worker.address, worker.line_of(self._workers.lost(worker, error))
        lost = WorkerUnavailableError(f"The worker at {address} was lost during its part: {cause}")
        lost.causes = {address: cause}
        return lost

    def __repr__(self) -> str:
        return f"<WorkerSessions at {len(self._phases)} workers>"
