"""Defines the scheduler: a state machine, without tasks, sockets or threads, that assigns closures to workers."""

import time
from collections.abc import Callable, Iterator

from fedstack.errors import ClosureCancelledError
from fedstack.service.coordinator import losses
from fedstack.service.coordinator.calls.closures import (
    Action,
    AskAgain,
    Closure,
    ClosureState,
    Fetch,
    Leave,
    Notify,
    RunClosures,
    Search,
    WorkerState,
)
from fedstack.service.coordinator.cancelled import CancelledClosures
from fedstack.service.coordinator.queues import MOST_RUNNING, Queues

MOST_QUEUED = 262_144


class Scheduler:
    """The closures of one coordinator, and the workers that run them.

    Methods report events: a closure was scheduled, succeeded or failed; a worker was added or lost. `actions` returns
    the resulting actions, which a driver runs. Not thread-safe.

    Args:
      most_queued: The maximum number of closures that may be queued, waiting or running.
      most_running: The maximum number of closures that run on one worker at the same time.
      goes_on: Whether other closures continue after a closure has failed. If not, they are cancelled.
      clock: Returns the time in seconds.
    """

    def __init__(
        self,
        most_queued: int = MOST_QUEUED,
        most_running: int = MOST_RUNNING,
        goes_on: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_queued = most_queued
        self.goes_on = goes_on
        self._queues = Queues(most_running, clock)
        self.ledger = self._queues.ledger
        self._unfinished: dict[Closure, None] = {}
        self._errors: dict[Exception, None] = {}
        self._changed: dict[Closure, None] = {}
        self._cancelled = CancelledClosures(clock)

    @property
    def workers(self) -> tuple[WorkerState, ...]:
        """The current workers."""
        return self._queues.workers

    @property
    def unfinished(self) -> int:
        """The number of closures that have not ended."""
        return len(self._unfinished)

    @property
    def running(self) -> int:
        """The number of closures running on workers, including those that were cancelled a moment ago."""
        return sum(len(worker.running) for worker in self.workers)

    @property
    def waiting(self) -> int:
        """The number of closures that have not started: they wait for a worker or for other closures."""
        given = [closure for worker in self.workers for closure in tuple(worker.running)]
        return max(0, len(self._unfinished) - sum(closure.state is ClosureState.RUNNING for closure in given))

    @property
    def values(self) -> int:
        """The number of values that workers hold."""
        return sum(len(worker.values) for worker in self.workers)

    @property
    def has_room(self) -> bool:
        """Whether another closure may be scheduled."""
        return len(self._unfinished) < self._most_queued

    @property
    def is_idle(self) -> bool:
        """Whether all closures have ended, and no worker is running one that was cancelled a moment ago."""
        return not self._unfinished and not self.running

    # Requests from callers.

    def schedule(self, closure: Closure) -> None:
        """Schedules a closure. The caller has a handle to its value."""
        closure.users += 1
        self._begin(closure)

    def cancel(self, closure: Closure) -> bool:
        """Cancels a closure unless it has ended, and returns whether the closure was cancelled."""
        is_new = not closure.has_ended
        if is_new:
            self._cancel(closure)
        return is_new

    def need(self, closure: Closure) -> None:
        """Requests that the value of a closure be available on a worker. Rebuilds the value if it was lost."""
        if losses.is_gone(closure):
            self._changed[closure] = None
        elif closure.state is ClosureState.LOST:
            self._begin(closure)

    def use(self, closure: Closure) -> None:
        """Keeps the value of a closure from being dropped until `unuse` is called."""
        closure.users += 1

    def unuse(self, closure: Closure) -> None:
        """Ends one use of a closure's value. The value is dropped when its last use ends."""
        closure.users -= 1
        if not closure.users and closure.state in (ClosureState.READY, ClosureState.LOST):
            losses.release(closure)

    def want(self, closure: Closure) -> None:
        """Requests that the value of a closure be fetched as soon as it is available."""
        closure.wanted = True
        self.need(closure)
        losses.fetch_if_wanted(closure)

    def unwant(self, closure: Closure) -> None:
        """Withdraws a request to fetch a closure's value. A fetch continues if the closure has already ended."""
        closure.wanted = closure.wanted and closure.has_ended

    def drop(self, closure: Closure) -> list[WorkerState]:
        """Drops a caller's handle to a closure. Returns the workers that no longer need to send the closure's value."""
        closure.wanted = False  # a closure that has not ended still runs
        senders = [worker for worker in closure.held if closure.is_there and closure in worker.fetching]
        for worker in senders:
            del worker.fetching[closure]
            worker.to_fetch.pop(closure, None)
        self.unuse(closure)
        return senders

    def take_errors(self) -> list[Exception]:
        """Returns and forgets the errors of closures since the last call of this method, oldest first.

        If closures continue after errors, returns errors only once all closures have ended.
        """
        if not self.has_errors:
            return []
        errors, self._errors = list(self._errors), {}
        return errors

    @property
    def has_errors(self) -> bool:
        """Whether `take_errors` would return an error."""
        return bool(self._errors) and not (self.goes_on and self._unfinished)

    # Events of workers.

    def add_worker(self, worker: WorkerState) -> None:
        """Adds an idle worker."""
        self._queues.add_worker(worker)

    def lose_worker(self, worker: WorkerState, error: Exception, *, at_work: bool = True) -> None:
        """Removes a lost worker and the values that no other worker holds.

        `error` is the reason for the loss. `at_work` tells whether the running closures may have caused the loss.
        """
        if worker.lost:
            return
        worker.lost = True
        self._queues.lose_worker(worker)
        losses.lose_values(worker)
        running = [closure for closure in worker.running if closure.state is ClosureState.RUNNING]
        worker.running.clear()
        fetching, worker.fetching, worker.to_fetch = worker.fetching, {}, {}
        for closure in reversed(running):
            if closure.state is not ClosureState.RUNNING:
                continue  # cancelled because another closure failed
            if at_work:
                self.ledger.lose(closure, worker.name)
            failure = losses.why_not_again(closure, error, self.ledger)
            if failure is None:
                self._begin(closure, first=True)
            else:
                self._fail(closure, failure)
        for closure in fetching:
            if closure.wanted:
                self.want(closure)

    def silent(self, worker: WorkerState, is_silent: bool) -> None:
        """Records that a worker does not respond, or responds again. A silent worker receives no further closures."""
        worker.silent = is_silent

    def drain(self, worker: WorkerState) -> None:
        """Records that a worker is about to stop. Its running closures may finish; it receives no more closures."""
        worker.draining = True

    def called(self, worker: WorkerState, calls: int) -> None:
        """Adds `calls` to the number of calls to a worker that are in flight. -1 records the end of a call."""
        worker.calls += calls

    def gone(self, closure: Closure, worker: WorkerState) -> None:
        """Records that a worker no longer runs a cancelled closure, and no longer sends its value."""
        worker.fetching.pop(closure, None)
        self._queues.ended(closure, worker, ran=False)

    def succeeded(self, closure: Closure, worker: WorkerState, held: object) -> None:
        """Records that a worker has run a closure and holds its value. `held` is the handle to the value."""
        if closure.state is not ClosureState.RUNNING or worker.lost:
            self._queues.ended(closure, worker)
            return
        closure.held[worker] = held
        worker.values[closure] = None
        if closure.prefetch:
            losses.fetch(closure, worker)
        else:
            self._succeed(closure, worker)

    def failed(self, closure: Closure, worker: WorkerState, error: Exception) -> None:
        """Records that a closure has failed on a worker for a reason other than the loss of the worker."""
        self._queues.ended(closure, worker, ran=False)
        if closure.state is ClosureState.RUNNING and not worker.lost:  # else: it is queued again, or runs elsewhere
            self._fail(closure, error)
        elif self._errors and not worker.lost:  # it was cancelled because of another error, but failed on its own
            closure.state, closure.error = ClosureState.FAILED, error
            self._errors[error] = None

    def holds(self, closure: Closure, worker: WorkerState, held: object) -> None:
        """Records that a worker holds the value of a closure, because it computed the value or received a copy."""
        if closure.state is ClosureState.READY and not worker.lost:
            closure.held[worker] = held
            worker.values[closure] = None

    def copied(self, closure: Closure, value: object, worker: WorkerState) -> None:
        """Records that the value of a closure was fetched. The closure keeps the copy."""
        worker.fetching.pop(closure, None)
        if closure.state in (ClosureState.READY, ClosureState.LOST):
            closure.state, closure.copy = ClosureState.READY, (value,)
            self._forget_call(closure)
            self._changed[closure] = None
        elif closure.state is ClosureState.RUNNING and worker in closure.held:
            closure.copy = (value,)
            self._succeed(closure, worker)
        else:  # the closure was cancelled
            self._queues.ended(closure, worker)

    def not_fetched(self, closure: Closure, worker: WorkerState, error: Exception) -> None:
        """Records that fetching the value of a closure from a worker has failed. The worker still holds the value."""
        worker.fetching.pop(closure, None)
        if closure in worker.running:
            self.failed(closure, worker, error)
        elif not worker.lost:
            if worker.draining:
                worker.refused[closure] = None
            if closure.wanted:
                closure.wanted, closure.refusal = False, error
                self._changed[closure] = None

    def gave_up(self, error: Exception) -> None:
        """Fails all closures with `error`, because no worker has been available for too long."""
        error.args = (f"{error}{losses.suspects_in(self._unfinished, self.ledger)}",)
        for closure in list(self._unfinished):
            if not closure.has_ended:
                closure.error = error
                self._end(closure, ClosureState.FAILED)
        self._errors[error] = None

    def actions(self) -> list[Action]:
        """Returns the actions, in the order to run them, that result from events since the last call of this method."""
        workers = self.workers
        seconds = [self._cancelled.let_go(workers)]
        runs = [RunClosures(worker, closures) for worker, closures in self._queues.assignments(self._can_begin)]
        leaves = [Leave(worker) for worker in workers if worker.draining and losses.has_left(worker)]
        actions: list[Action] = []
        if self._changed:
            changed, self._changed = [one for one in self._changed if one.has_ended], {}  # others run again
            actions.append(Notify([callback for closure in changed for callback in tuple(closure.callbacks)]))
            for closure in changed:
                closure.callbacks = {}
        actions += self._cancelled.stops(workers)
        for worker in workers:
            if worker.to_fetch:
                actions.append(Fetch(worker, list(worker.to_fetch)))
                worker.to_fetch.clear()
        actions += runs
        if self._unfinished and not workers:
            actions.append(Search())
        seconds.append(self._queues.seconds_to_assignments())
        if again := [one for one in seconds if one is not None]:
            actions.append(AskAgain(min(again)))
        return actions + leaves

    def end(self) -> None:
        """Cancels all closures, and wakes the callers that wait for values."""
        self.cancel_all()
        for worker in self.workers:
            self._changed.update(worker.fetching)

    def cancel_all(self, why: str = "") -> None:
        """Cancels all closures that have not ended."""
        for closure in list(self._unfinished):
            self._cancel(closure, why)

    def _begin(self, begun: Closure, *, first: bool = False) -> None:
        """Queues a closure. If arguments are not available, the closure waits, and lost arguments are rebuilt."""
        stack = [begun]
        while stack:
            closure = stack.pop()
            if closure not in self._unfinished:
                self._unfinished[closure] = None
                for need in closure.needs:
                    need.users += 1
            closure.state = ClosureState.WAITING
            gone = next(filter(losses.is_gone, closure.needs), None)
            if gone is not None:
                if gone.state is ClosureState.FAILED and gone.error is not None:
                    self._fail(closure, gone.error)
                else:
                    self._cancel(closure)
                return  # the other closures on the stack were needed only by closures that have now ended
            lacking = [need for need in dict.fromkeys(closure.needs) if not need.is_there]
            closure.missing = len(lacking)
            for need in lacking:
                need.dependents[closure] = None
            stack += [need for need in lacking if need.state is ClosureState.LOST]
            if not lacking:
                self._queue(closure, first=first)

    def _queue(self, closure: Closure, *, first: bool = False, at_once: bool = False) -> None:
        closure.state = ClosureState.QUEUED
        closure.depth = 1 + max((need.depth for need in closure.needs), default=0)
        self._queues.add(closure, first=first, at_once=at_once)

    def _can_begin(self, closure: Closure) -> bool:
        """Returns whether a queued closure can run now. If arguments have since been lost, rebuilds them."""
        if closure.state is not ClosureState.QUEUED:
            return False  # cancelled, or already started from another queue
        if all(need.is_there for need in closure.needs):
            return True
        self._begin(closure)
        return False

    def _succeed(self, closure: Closure, worker: WorkerState) -> None:
        self._queues.ended(closure, worker)
        self._end(closure, ClosureState.READY)
        losses.fetch_if_wanted(closure)
        if not closure.users:
            losses.release(closure)

    def _fail(self, closure: Closure, error: Exception) -> None:
        closure.error = error
        self._errors[error] = None
        self._end(closure, ClosureState.FAILED)
        if not self.goes_on:
            self.cancel_all(f", because the call of {closure.name!r} failed")

    def _cancel(self, closure: Closure, why: str = "") -> None:
        closure.error = ClosureCancelledError(f"The call of {closure.name!r} was cancelled{why}")
        if closure.state is ClosureState.RUNNING:
            self._cancelled.add(closure)
        self._end(closure, ClosureState.CANCELLED)

    def _end(self, closure: Closure, state: ClosureState) -> None:
        """Ends a closure. If it has no value, also ends the closures that depend on the value."""
        for ending in self._all_that_end(closure, state):
            self._unfinished.pop(ending, None)
            self._changed[ending] = None
            self.ledger.forget(ending)
            for need in ending.needs:
                need.dependents.pop(ending, None)
                self.unuse(need)
            if ending.state is not ClosureState.READY:
                losses.release(ending)  # a value that was to be prefetched may be on a worker
            if ending.state is not ClosureState.READY or not losses.may_be_rebuilt(ending):
                self._forget_call(ending)

    def _all_that_end(self, closure: Closure, state: ClosureState) -> Iterator[Closure]:
        closure.state = state
        stack = [closure]
        while stack:
            ending = stack.pop()
            was_counted = ending in self._unfinished
            dependents, ending.dependents = list(ending.dependents), {}
            if was_counted:
                yield ending
            for dependent in dependents:
                if dependent.state is not ClosureState.WAITING:
                    continue
                if state is ClosureState.READY:
                    dependent.missing -= 1
                    if not dependent.missing:
                        self._queue(dependent, at_once=True)
                else:
                    dependent.state, dependent.error = state, closure.error
                    stack.append(dependent)

    def _forget_call(self, closure: Closure) -> None:
        """Drops the data that is needed only to run an ended closure again."""
        closure.call, closure.needs, closure.depth = None, (), 0
