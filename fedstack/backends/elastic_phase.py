"""Runs one phase on the workers of a backend: carries out the decisions of `Assignments` and `Balance`.

If a worker is lost, the clients that it has not handed in run again on the workers that are available then, and all
other work continues. Only if the same clients have been lost as often as the retry policy of the invocation allows, or
if no worker is left, does the invocation fail. If a worker is idle, it takes over clients of a busy worker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeVar

import attrs

from fedstack.backends.backend import Backend, Caller
from fedstack.backends.elastic.assignments import Assignment, Assignments
from fedstack.backends.elastic.phase_news import PhaseNews
from fedstack.backends.elastic.rebalancing import Available, Rebalancing
from fedstack.backends.task_phases import PhaseAtClients
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import FedstackError, LeafError, NoWorkersError, RemoteError
from fedstack.executors.base.hand_ins import HandIn, Leave
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine, PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.composing_executor import LOSSES, Contributions, even_counts, whole_blocks
from fedstack.executors.concurrency.coroutines import TOGETHER_SECONDS, end_all, wait
from fedstack.executors.concurrency.progress import PartProgress
from fedstack.executors.remote.phase_copies import note_length, sent_once
from fedstack.executors.survivors.tolerance import Guarded, Tolerance
from fedstack.foundations.error_text import counted
from fedstack.foundations.traceback_filter import without_frames
from fedstack.membership.ledger import InvocationLosses, named

_logger = logging.getLogger(__name__)
# The minimum time between two contributions of a worker. The work of about half this time is lost with a worker.
HAND_IN_SECONDS = 0.5
# The system reports the exit status of a process shortly after its connections have broken.
_REAPED_SECONDS = 0.05
_T = TypeVar("_T")


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
        self._assignments = Assignments(part.clients)
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
        self._must_search = False
        self._tolerance = scope.of(Tolerance)
        self._begun_with = 0
        self._is_guarded = False
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

    async def folded(self) -> FoldedPhase:
        """Runs the phase and returns the merged contributions of all clients.

        Raises:
          FedstackError: If a client fails; of several such errors, the error of the lowest client.
          WorkerUnavailableError: If clients have been lost as often as the retry policy allows.
          NoWorkersError: If no worker is available.
        """
        if self._progress is not None and self._part.phase.program.steps:
            self._progress.expect(len(self._part.clients))
        try:
            await self._begin()
            while not self._assignments.is_done:
                await self._turn()
            self._raise_failure()
            if self._tasks:  # of workers whose clients have run elsewhere
                await end_all(list(self._tasks), asyncio.CancelledError())
        except BaseException as error:
            await end_all(list(self._tasks), error)
            if isinstance(error, LOSSES):
                self._raise_failure()  # a client's own error says more than the loss of a worker
            raise
        finally:
            self._rebalancing.close()
            del self._rebalancing
            self._tasks.clear()  # breaks the reference cycles of this object, its tasks and their errors
            self._ended.clear()
        note_length(self._part.phase, self._loop.time() - self._begun_at)
        return await self._contributions.folded()

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
        clients, losses = self._part.clients, self._losses
        if losses is not None and losses.suspects(self._part.phase):  # of an earlier attempt
            self._suspect(losses)
            self._news.set()
            return
        places = await self._backend.with_room(await self._backend.places(), len(clients))
        self._begun_with = len(places)
        cuts_blocks = not any(fold.functions for fold in self._part.phase.folds)
        counts = even_counts(len(clients), len(places)) if cuts_blocks else whole_blocks(clients, len(places))
        runners, counts = self._backend.runners(self._part.phase, places, counts, self._caller)
        # An engine with a store may join workers to groups, of which the first worker merges the contributions.
        workers: Sequence[Hashable] = places if len(runners) == len(places) else range(len(runners))
        self._runners = dict(zip(workers, runners))
        self._rebalancing.present(workers)
        self._run(self._assignments.begin(workers, counts))

    async def _turn(self) -> None:
        """Waits for news, and processes them."""
        times = [None if self._finding is not None else self._assignments.wakes_at, self._rebalancing.wakes_at]
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
        if self._must_search and self._search is None and (self._backend.searches_apart or self._assignments.is_idle):
            self._must_search = False
            self._search = self._task(self._search_suspects())
        if self._finding is None:
            if self._assignments.needs_workers:  # a worker may have been lost while the others were being looked for
                self._finding = self._task(self._find_workers())
            else:
                self._run(self._assignments.start(self._loop.time()))
        self._run(self._rebalancing.turn())
        self._end_dropped()

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
            await self._after_loss(assignment, error)
        elif isinstance(error, asyncio.CancelledError):
            raise error
        else:
            first = assignment.left[0].start if assignment.left else assignment.clients.start
            self._assignments.failed(assignment)
            if self._failure is None or first < self._failure[0]:
                self._failure = first, error

    async def _after_loss(self, assignment: Assignment, error: Exception) -> None:
        """Lets the clients of a lost worker run again, or raises the error."""
        if not assignment.left:  # everything has been handed in, or runs on other workers
            without_frames(error)
            self._assignments.lost(assignment, 0.0)
            return
        losses = self._losses
        pause = None if losses is None else losses.pause(assignment.losses + 1)
        if losses is not None and isinstance(error, FedstackError):
            losses.causes.update(error.causes)
        if losses is None or pause is None or (isinstance(error, NoWorkersError) and error.is_final):
            await self._give_up(error)
            return
        self._news_of.lost(assignment, error, pause)
        without_frames(error)
        self._assignments.lost(assignment, self._loop.time() + pause)
        if self._is_guarded:
            return
        if await self._must_guard(losses):
            self._is_guarded = True
            _logger.info(
                "Clients may have ended %s; the clients that are left run in child processes of the other workers",
                counted(losses.count(self._part.phase), "worker"),
            )
            self._assignments.release()
            self._rebalancing.recall()
        elif losses.suspects(self._part.phase):
            self._suspect(losses)

    async def _must_guard(self, losses: InvocationLosses) -> bool:
        """Returns whether the workers must be protected from the clients that are left.

        If failures are tolerated, a client that ends its process is one, and must not end further workers. Otherwise,
        workers are protected that nobody would restart.
        """
        phase, backend = self._part.phase, self._backend
        if not backend.searches_apart or not losses.count(phase):
            return False
        if self._tolerance is None:
            return self._begun_with > 1 and backend.guarding() > 0
        await wait(_REAPED_SECONDS)  # the exit status of a process of a pool tells whether it was killed from outside
        return losses.count(phase) > 0

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
        counts = PartProgress(self._progress) if self._progress is not None and part.phase.program.steps else None

        def take(clients: range, result: PhaseResult) -> None:
            self._loop.call_soon_threadsafe(self._take, assignment, clients, result, counts)

        def reached(client: int) -> None:
            assignment.begun = client

        def begun(leave: Leave) -> None:
            self._rebalancing.begun(assignment, leave)

        hand_in = HandIn(take, HAND_IN_SECONDS, begun=begun, reached=reached)
        run = self._runners[assignment.worker].run_in_parts
        running = run(part.phase, part.inputs, part.arguments, part.clients, hand_in)
        scope = current_scope()
        scope = scope.adding(Guarded()) if self._is_guarded else scope
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

    def _take(self, assignment: Assignment, clients: range, result: PhaseResult, counts: PartProgress | None) -> None:
        """Adds a contribution that a worker has handed in."""
        try:
            if self._assignments.handed_in(assignment, clients):
                self._contributions.add(clients, result, str(assignment.worker))
                if assignment.left:
                    self._news_of.handed_in(clients, assignment.worker)
                if counts is not None:
                    counts.settled(len(clients))
        except Exception as error:  # for example, arrays that do not fit together
            self._broken = self._broken or error
            self._news.set()

    async def _find_workers(self) -> None:
        """Finds the workers that are available after a loss."""
        available = await self._repeated(self._available, "Asking again which workers are available")
        self._assignments.present(available.chosen)
        self._rebalancing.present(available.chosen)

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

    async def _repeated(self, work: Callable[[], Awaitable[_T]], what: str) -> _T:
        """Repeats work on workers that may be lost meanwhile, as often as the retry policy allows."""
        losses, failures = self._losses, 0
        assert losses is not None, "only losses cause such work"
        while True:
            try:
                return await work()
            except LOSSES as error:
                failures += 1
                pause = losses.pause(failures)
                if pause is None or isinstance(error, NoWorkersError):
                    losses.is_over = True
                    raise
                _logger.warning("%s in %.2f s after %s: %s", what, pause, type(error).__name__, error)
            await wait(pause)

    def _suspect(self, losses: InvocationLosses) -> None:
        """Keeps suspected clients waiting for a search; all clients, if the search ends workers."""
        suspects = [some.clients for some in losses.suspects(self._part.phase)]
        self._assignments.hold(suspects if self._backend.searches_apart else [self._part.clients])
        self._must_search = True

    async def _search_suspects(self) -> None:
        """Searches the suspected clients for one that ends its worker, and lets all clients run if there is none."""
        losses, phase = self._losses, self._part.phase
        assert losses is not None, "suspects are found in the losses"
        work = lambda: self._backend.search(self._part, losses.suspects(phase), self._caller)  # noqa: E731
        try:
            searched = await self._repeated(work, "Searching again")
        except LeafError as error:
            client = error.client_index
            if self._tolerance is None or client is None:
                raise
            searched = True
            self._contributions.skip(client, without_frames(error))
            self._assignments.skip(client)
        if searched:
            losses.forget(phase)
        self._assignments.release()

    def _end_dropped(self) -> None:
        """Ends the assignments that are no longer needed."""
        dropped, self._assignments.dropped = set(self._assignments.dropped), []
        for task, assignment in list(self._tasks.items()) if dropped else ():
            if assignment in dropped:
                self._rebalancing.ended(assignment)
                task.cancel()
