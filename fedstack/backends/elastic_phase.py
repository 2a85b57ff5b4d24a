"""Runs one phase on the workers of a backend: carries out the decisions of `Assignments` and `Balance`.

If a worker is lost, the clients that it has not handed in run again on the workers that are available then, and all
other work continues. Only if the same clients have been lost as often as the retry policy of the invocation allows, or
if no worker is left, does the invocation fail. If a worker is idle, it takes over clients of a busy worker.
"""

import asyncio
import logging
from collections.abc import Coroutine, Hashable, Sequence
from typing import Any

import attrs

from fedstack.backends.backend import Backend, Caller
from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.backends.elastic.early_end import EarlyEnd
from fedstack.backends.elastic.phase_news import PhaseNews
from fedstack.backends.elastic.placement import placed
from fedstack.backends.elastic.rebalancing import Available, Rebalancing
from fedstack.backends.handed_in import HandedIn
from fedstack.backends.lost_clients import LostClients
from fedstack.backends.task_phases import PhaseAtClients, SharedValues
from fedstack.computations.leaves.work_scope import SystemScope, WorkScope, current_scope
from fedstack.errors import RemoteError
from fedstack.executors.base.hand_ins import HandIn, Leave
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine, PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.composing_executor import LOSSES, Contributions
from fedstack.executors.concurrency.coroutines import TOGETHER_SECONDS, end_all
from fedstack.executors.concurrency.phase_records import is_harmless, note_length
from fedstack.executors.concurrency.progress import PartProgress, ProgressCounts
from fedstack.executors.concurrency.repetition import repeated
from fedstack.executors.remote.phase_copies import sent_once
from fedstack.executors.remote.phase_messages import SentFunctions
from fedstack.executors.remote.remote_transfers import SharedFiles
from fedstack.executors.survivors.tolerance import Guarded, Tolerance, present_among
from fedstack.executors.survivors.unreadable_inputs import UnreadableInputsError
from fedstack.foundations.traceback_filter import without_frames
from fedstack.membership.ledger import InvocationLosses, named

_logger = logging.getLogger(__name__)
# How long a worker is kept in reserve, in seconds.
_RESERVE_SECONDS = 1.0
# The minimum time between two contributions of a worker. The work of about half this time is lost with a worker.
HAND_IN_SECONDS = 0.5


class ElasticPhase:
    """One run of a phase for all clients.

    Args:
      engine: The engine of the phase, whose server folds the contributions.
      backend: The backend with the workers.
      caller: The settings of the caller.
      part: The phase, with all clients and their inputs.
    """

    def __init__(self, engine: PhaseEngine, backend: Backend, caller: Caller, part: PhaseAtClients) -> None:
        scope = current_scope()
        self._backend = backend
        self._caller = caller
        self._part = attrs.evolve(part, inputs=sent_once(part.phase, part.inputs))
        self._assignments = Assignments(part.clients, cuts_blocks=not any(fold.functions for fold in part.phase.folds))
        self._contributions = Contributions(engine, part.phase, part.arguments, part.clients)
        self._losses: InvocationLosses | None = scope.losses
        self._progress = scope.progress
        self._news_of = PhaseNews(scope.span, scope.progress if part.phase.program.steps else None)
        self._runners: dict[Hashable, PhaseRunner] = {}
        self._tasks: dict[asyncio.Task[None], Assignment | None] = {}
        self._loop = asyncio.get_running_loop()
        self._begun_at = self._loop.time()
        self._broken: Exception | None = None
        self._ended: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._finding: asyncio.Task[None] | None = None
        self._search: asyncio.Task[None] | None = None
        self._tolerance = scope.of(Tolerance)
        self._files = SharedFiles()
        self._scope = scope.adding(SentFunctions(part.phase), SharedValues(), self._files)
        self._failure: tuple[int, BaseException] | None = None
        self._rebalancing = Rebalancing(
            self._assignments,
            len(part.clients),
            self._news_of,
            backend.watch,
            self._available,
            self._task,
            hedging=backend.stops_clients and self._losses is not None and self._losses.hedging,
        )
        self._handed_in = HandedIn(self._assignments, self._contributions, self._news_of, self._rebalancing.is_silent)
        self._early = self._handed_in.early
        self._lost = LostClients(
            backend, caller, self._part, self._assignments, self._contributions, self._news_of, self._rebalancing.recall
        )

    async def folded(self) -> FoldedPhase:
        """Runs the phase and returns the merged contributions of all clients.

        Raises:
          FedstackError: If a client fails; of several such errors, the error of the lowest client.
          WorkerUnavailableError: If clients have been lost as often as the retry policy allows.
          NoWorkersError: If no worker is available.
        """
        if self._progress is not None and self._part.phase.program.steps:
            self._progress.expect(present_among(self._part.clients))
        try:
            await self._begin()
            while not self._assignments.is_done:
                await self._turn()
            self._raise_failure()
            await self._end_tasks(asyncio.CancelledError())  # of workers whose clients have run elsewhere
        except BaseException as error:
            await self._end_tasks(error)
            if isinstance(error, LOSSES):
                self._raise_failure()  # a client's own error says more than the loss of a worker
            raise
        finally:
            self._handed_in.close()
            self._files.close()
            del self._rebalancing, self._lost, self._early
            self._tasks.clear()  # breaks the reference cycles of this object, its tasks and their errors
            self._ended.clear()
        note_length(self._part.phase, self._loop.time() - self._begun_at)
        return await self._contributions.folded()

    async def _end_tasks(self, error: BaseException) -> None:
        self._rebalancing.close()  # now, because it starts tasks
        if self._tasks:
            await end_all(list(self._tasks), error)

    def _raise_failure(self) -> None:
        """Raises the error of the lowest client that has failed, if any has."""
        if self._failure is not None:
            # If this object kept the error, both would form a reference cycle.
            (_, error), self._failure = self._failure, None
            try:
                raise error from error.__cause__
            finally:
                del error

    async def _begin(self) -> None:
        """Assigns all clients to the workers that are available now."""
        if self._lost.suspect():  # clients of an earlier attempt
            self._news.set()
            return
        # The results of earlier phases are kept if a worker is lost now.
        places = await repeated(self._places, self._losses, "Beginning a phase", LOSSES, gives_up_alone=False)
        if (
            self._tolerance is not None
            and not is_harmless(self._part.phase)
            and len(places) > 1
            and self._backend.loses_workers
        ):
            # Clients that end their process may end all workers before the first loss is known. If failures are
            # tolerated and nobody restarts workers, one of them waits until clients of a new program have run a while.
            places = places[:-1]
            self._rebalancing.wait(_RESERVE_SECONDS)
        self._lost.begun_with = self._files.workers = len(places)
        counts = self._assignments.counts(len(places))
        kept = [self._backend.kept_at(place, self._part.inputs) for place in places]
        if any(kept):
            places = [places[index] for index in placed(counts, kept)]
        runners, counts = self._backend.runners(self._part.phase, places, counts, self._caller)
        # An engine with a store may join workers to groups, of which the first worker merges the contributions.
        workers: Sequence[Hashable] = places if len(runners) == len(places) else range(len(runners))
        self._runners = dict(zip(workers, runners))
        self._rebalancing.present(workers)
        self._run(self._assignments.begin(workers, counts))

    async def _turn(self) -> None:
        """Waits for news, and processes them."""
        times = [None if self._finding is not None else self._assignments.wakes_at, self._rebalancing.wakes_at]
        if self._early is not None:
            times = [self._early.wakes_at, *([] if self._early.is_asking else times)]
        wakes_at, timer = min((at for at in times if at is not None), default=None), None
        if wakes_at is not None:
            timer = self._loop.call_later(max(0.0, wakes_at - self._loop.time()), self._news.set)
        await self._news.wait()
        self._news.clear()
        if timer is not None:
            timer.cancel()
        if self._broken is not None:
            try:
                raise self._broken
            finally:
                self._broken = None  # breaks the reference cycle of the error and this object
        ended, self._ended = self._ended, []
        for task in ended:
            assignment = self._tasks.pop(task, None)
            if task is self._finding:
                self._finding = None
            elif task is self._search:
                self._search = None
            if assignment is None:
                task.result()  # raises
            else:
                await self._after(assignment, task)
        if self._early is not None and self._ends_early(self._early):
            return
        if self._search is None and self._lost.must_search():
            with self._scope.entered():
                self._search = self._task(self._lost.search())
        if self._finding is None:
            if self._assignments.needs_workers:  # a worker may have been lost while the others were being looked for
                self._finding = self._task(self._find_workers())
            else:
                self._run(self._assignments.start(self._loop.time()))
        self._run(self._rebalancing.turn())
        self._end_dropped()

    def _ends_early(self, early: EarlyEnd) -> bool:
        """Ends the phase if enough clients are done, and returns whether it ends now."""
        for assignment in early.turn(self._loop.time(), self._rebalancing.is_silent):
            self._task(self._ask_to_end(early, assignment))
        self._end_dropped()
        return early.is_asking or early.is_over

    async def _ask_to_end(self, early: EarlyEnd, assignment: Assignment) -> None:
        if not await self._rebalancing.end(assignment):
            early.no_answer(assignment)

    async def _after(self, assignment: Assignment, task: "asyncio.Task[None]") -> None:
        """Processes the end of an assignment."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._rebalancing.ended(assignment)
        if assignment not in self._assignments.running:
            if error is not None:
                without_frames(error)  # nobody sees it
            return
        if error is None:
            raise RemoteError(
                f"Expected the contributions of all clients from {assignment.worker}, found none of "
                f"{', '.join(map(named, assignment.left))}; check that the worker runs the same version of fedstack"
            )
        elif isinstance(error, LOSSES):
            if not await self._lost.run_again(assignment, error):
                await self._give_up(error)
        elif isinstance(error, asyncio.CancelledError):
            raise error
        elif isinstance(error, UnreadableInputsError):
            for client, found in error.by_client.items():
                self._handed_in.skip(range(client, client + 1), {client: found})
                self._assignments.skip(range(client, client + 1))
            self._assignments.ended(assignment)  # the others wait again
        else:
            first = assignment.left[0].start if assignment.left else assignment.clients.start
            self._assignments.failed(assignment)
            if self._failure is None or first < self._failure[0]:
                self._failure = first, error

    async def _give_up(self, error: Exception) -> None:
        """Raises the error of a loss, after which the invocation is not repeated."""
        running = [task for task in self._tasks if not task.done()]
        if running:
            await asyncio.wait(running, timeout=TOGETHER_SECONDS)  # for the losses of other workers
        if self._losses is not None:
            self._losses.is_over = True
            for task in running:
                other = task.exception() if task.done() and not task.cancelled() else None
                if isinstance(other, LOSSES):
                    self._losses.causes.update(other.causes)
        raise error

    def _run(self, started: Sequence[Assignment]) -> None:
        for assignment in started:
            self._tasks[self._task(self._run_one(assignment))] = assignment

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._end)
        return task

    def _end(self, task: "asyncio.Task[None]") -> None:
        assignment = self._tasks.get(task)
        is_done = not task.cancelled() and task.exception() is None
        if is_done and assignment in self._assignments.running and self._assignments.ended(assignment):
            del self._tasks[task]
            self._rebalancing.ended(assignment)
            if self._assignments.running and not self._rebalancing.is_settled:
                return  # nothing follows from it, so a turn would only cost time
        elif task in self._tasks:
            self._ended.append(task)
        self._news.set()

    async def _run_one(self, assignment: Assignment) -> None:
        """Runs the clients of an assignment, and adds what the worker hands in."""
        part = self._part.at(assignment.clients)
        counts = self._counts_of(assignment)

        def take(clients: range, result: PhaseResult) -> None:
            self._loop.call_soon_threadsafe(self._take, assignment, clients, result, counts)

        def reached(client: int) -> None:
            assignment.begun = client

        def begun(leave: Leave) -> None:
            self._rebalancing.begun(assignment, leave)
            if self._rebalancing.is_settled:
                self._news.set()  # a worker may be idle already

        hand_in = HandIn(take, HAND_IN_SECONDS, begun=begun, reached=reached, origin=assignment.origin)
        run = self._runners[assignment.worker].run_in_parts
        running = run(part.phase, part.inputs, part.arguments, part.clients, hand_in)
        scope = self._scope_of(assignment)
        if counts is None:
            with scope.entered():
                last = await running
        else:
            with scope.replace(progress=counts).entered():
                try:
                    last = await running
                except LOSSES:
                    if self._losses is not None:
                        counts.withdraw()
                    raise
                except asyncio.CancelledError:
                    if self._failure is None and not assignment.left:  # its clients have run elsewhere
                        counts.withdraw()
                    raise
        self._take(assignment, *last, counts)
        if counts is not None and assignment.left:
            counts.withdraw()  # other workers run the rest

    def _counts_of(self, assignment: Assignment) -> PartProgress | None:
        """Returns the counts of the clients of an assignment; `None` if nobody counts."""
        if self._early is not None:

            def changed() -> None:
                self._loop.call_soon_threadsafe(self._news.set)

            counts = PartProgress(self._progress or ProgressCounts(), changed)
            self._early.begun(assignment, counts)
            return counts
        return PartProgress(self._progress) if self._progress is not None and self._part.phase.program.steps else None

    def _scope_of(self, assignment: Assignment) -> WorkScope:
        """Returns the scope in which a worker runs an assignment."""
        added: list[SystemScope] = [Guarded()] if self._lost.is_guarded else []
        if self._tolerance is not None and self._tolerance.retries:
            left = max(0, self._tolerance.retries - assignment.failures)
            added.append(attrs.evolve(self._tolerance, retries=left, retries_elsewhere=left > 0))
        return self._scope.adding(*added) if added else self._scope

    def _take(self, assignment: Assignment, clients: range, result: PhaseResult, counts: PartProgress | None) -> None:
        """Adds a contribution that a worker has handed in."""
        try:
            if self._handed_in.take(assignment, clients, result, counts):
                self._news.set()
        except Exception as error:  # for example, arrays that do not fit together
            self._broken = self._broken or error
            self._news.set()

    async def _find_workers(self) -> None:
        """Finds the workers that are available after a loss."""
        available = await repeated(self._available, self._losses, "Looking for workers", LOSSES)
        self._assignments.present(available.chosen)
        self._rebalancing.present(available.chosen)

    async def _places(self) -> Sequence[Hashable]:
        """Returns the workers that begin the phase."""
        return await self._backend.with_room(await self._backend.places(), len(self._part.clients))

    async def _available(self) -> Available:
        """Returns the workers that are available, each with its runner."""
        ready = await self._backend.places()
        # One more than there are clients, so that the last client of a silent worker can run elsewhere.
        chosen = await self._backend.with_room(ready, len(self._part.clients) + 1)
        for place in chosen:
            if place not in self._runners:
                runners, _ = self._backend.runners(self._part.phase, [place], [len(self._part.clients)], self._caller)
                self._runners[place] = runners[0]
        return Available(ready, chosen)

    def _end_dropped(self) -> None:
        """Ends the assignments that are no longer needed."""
        dropped, self._assignments.dropped = set(self._assignments.dropped), []
        for task, assignment in list(self._tasks.items()) if dropped else ():
            if assignment in dropped:
                self._rebalancing.ended(assignment)
                task.cancel()
