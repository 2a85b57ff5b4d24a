"""Carries out the decisions of `Balance` for one phase: asks busy workers for clients, and notices new workers."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any

import attrs

from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.backends.elastic.balance import SETTLED_SECONDS, Ask, Balance
from fedstack.backends.elastic.phase_news import PhaseNews
from fedstack.errors import DeadlineExceededError, FedstackError
from fedstack.executors.base.hand_ins import END, Headway, Leave
from fedstack.foundations.deadline import Deadline, timers_on

_logger = logging.getLogger(__name__)
# A worker that does not answer within this time may be standing still.
_SILENT_SECONDS = 1.0


@attrs.frozen
class Available:
    """The workers that are available.

    Attributes:
      ready: All workers that accept clients.
      chosen: Those of them that take part in the phase.
    """

    ready: Sequence[Hashable]
    chosen: Sequence[Hashable]


class Rebalancing:
    """Keeps the workers of one phase busy, once the phase has lasted for a moment.

    Args:
      assignments: The assignments of the phase.
      clients: The number of clients of the phase.
      news: Tells which clients have been taken over.
      watch: Subscribes a function to changes of the workers, and returns a function that unsubscribes it.
      find: Returns the workers that are available.
      task: Starts a task of the phase. When such a task has ended, there may be something to do in `turn`.
      hedging: Whether clients may run on two workers at the same time.
    """

    def __init__(
        self,
        assignments: Assignments,
        clients: int,
        news: PhaseNews,
        watch: Callable[[Callable[[], None]], Callable[[], None]],
        find: Callable[[], Awaitable[Available]],
        task: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        *,
        hedging: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._assignments = assignments
        self._balance = Balance(assignments, clients, self._loop.time(), hedging=hedging)
        self._news = news
        self._find = find
        self._task = task
        self._leave: dict[Assignment, Leave] = {}
        self._started: list[Assignment] = []
        self._looking: asyncio.Task[None] | None = None
        self._must_look = False
        self._unwatch: Callable[[], None] | None = None
        self._watch = watch
        self._timer = timers_on(self._loop).call_at(self._loop.time() + SETTLED_SECONDS, self._settle)
        self.is_settled = False

    def _settle(self) -> None:
        self.is_settled = True
        self._unwatch = self._watch(self._changed)
        self._look()

    def _changed(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have been closed meanwhile
            self._loop.call_soon_threadsafe(self._look)

    def wait(self, seconds: float) -> None:
        """Lets no clients move for some time, unless a worker is lost, and looks for no idle workers."""
        self._timer.end()
        self._timer = timers_on(self._loop).call_at(self._loop.time() + seconds, self._settle)

    def present(self, workers: Sequence[Hashable]) -> None:
        """Records which workers take part in the phase."""
        self._balance.present(workers)

    def begun(self, assignment: Assignment, leave: Leave) -> None:
        """Records that a worker has begun its clients, and how to ask it for its last clients."""
        self._leave[assignment] = leave
        self._balance.begun(assignment, self._loop.time())

    def ended(self, assignment: Assignment) -> None:
        """Records that a worker has run its clients, was lost, or is no longer needed."""
        if self._leave.pop(assignment, None) is not None:
            self._balance.ended(assignment, self._loop.time())

    def is_silent(self, assignment: Assignment) -> bool:
        """Returns whether the worker of an assignment did not answer when it was last asked."""
        return self._balance.is_silent(assignment)

    async def end(self, assignment: Assignment) -> bool:
        """Asks a worker to end the phase now, and returns whether it does."""
        leave = self._leave.get(assignment)
        try:
            return leave is not None and await leave(END) is not None
        except FedstackError as error:
            _logger.debug("%s was asked to end a phase, and did not answer: %s", assignment.worker, error)
            return False

    def recall(self) -> None:
        """Asks all workers for the clients that they have not begun, so that these are assigned again."""
        for ask in self._balance.recall():
            self._task(self._ask(ask, self._leave[ask.assignment]))

    def turn(self) -> Sequence[Assignment]:
        """Sends the requests that are due, and returns the assignments to start."""
        if not self.is_settled:
            return ()
        now = self._loop.time()
        for ask in self._balance.asks(now):
            self._task(self._ask(ask, self._leave[ask.assignment]))
        started, self._started = [*self._started, *self._balance.copies(now)], []
        self._tell()
        return started

    @property
    def wakes_at(self) -> float | None:
        """The time at which `turn` may have something to do without news; `None` if there is none."""
        return self._balance.wakes_at(self._loop.time()) if self.is_settled else None

    def close(self) -> None:
        """Stops rebalancing."""
        self._timer.end()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        self._looking = None  # breaks the reference cycle of its error's frames and this object
        self._leave.clear()

    async def _ask(self, ask: Ask, leave: Leave) -> None:
        """Asks a worker for its last clients."""
        headway: Headway | None = None
        is_silent = False
        try:
            deadline = Deadline(_SILENT_SECONDS, self._loop.time)
            headway = await deadline.wait(leave(ask.rate), lambda: DeadlineExceededError("late"))
        except DeadlineExceededError:
            is_silent = True
        except FedstackError as error:  # if the worker is lost, its assignment fails too
            _logger.debug("%s did not say whether it leaves clients to others: %s", ask.assignment.worker, error)
        self._started += self._balance.answered(ask, headway, self._loop.time(), is_silent=is_silent)

    def _look(self) -> None:
        """Finds the workers that are available, after a change."""
        if self._unwatch is None:
            return  # the phase has ended
        self._must_look = self._looking is not None and not self._looking.done()
        if not self._must_look:
            self._looking = self._task(self._find_workers())

    async def _find_workers(self) -> None:
        try:
            available = await self._find()
        except FedstackError as error:  # the phase asks again, and fails, if it needs workers
            _logger.debug("Found no workers for a phase: %s", error)
            return
        finally:
            if self._must_look:
                self._loop.call_soon(self._look)
        leaving = {one.worker for one in self._leave} - set(available.ready)
        self._assignments.present(available.chosen)
        self._balance.present(available.chosen, leaving)

    def _tell(self) -> None:
        """Tells which clients have been taken over."""
        taken, self._balance.taken = self._balance.taken, []
        for one in taken:
            self._news.taken_over(one)

    def __repr__(self) -> str:
        return f"<Rebalancing by {self._balance!r}>"
