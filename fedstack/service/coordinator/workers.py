"""Runs closures on one worker and fetches values from the worker, by calling its executors."""

import abc
import asyncio
import contextlib
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import attrs

from fedstack.computations.types.language import Executor, ExecutorValue, RetryableError, Struct
from fedstack.errors import FedstackError
from fedstack.executors.base.verb_executor import create_known, pull
from fedstack.executors.concurrency.coroutines import LazyTask
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.service.coordinator.calls.closures import (
    Argument,
    CalledFunction,
    Closure,
    ClosureCall,
    ClosureState,
    ConstantArgument,
    ResultArgument,
    StructArgument,
    WorkerState,
)
from fedstack.service.coordinator.driver import Driver

_K = TypeVar("_K")
Outcomes = Mapping[ExecutorValue, Exception | None]
# The maximum number of values that one call fetches from an executor.
_FETCH_BATCH = 100
# Each number of clients has its own executor. If there are more executors than this, unused ones are closed.
_MOST_EXECUTORS = 16


@attrs.frozen(eq=False)
class ValueHandle:
    """A handle to the value of a closure on a worker.

    Attributes:
      executor: The executor that holds the value.
      value: The value in the executor. The executor disposes of the value once nothing refers to this object.
    """

    executor: Executor
    value: ExecutorValue

    async def payload(self) -> object:
        """Fetches the value."""
        return await pull(self.value)


async def payloads_of(handles: Sequence[ValueHandle]) -> Sequence[object]:
    """Fetches several values of one executor in one call."""
    if len(handles) == 1:
        return [await handles[0].payload()]
    struct = await handles[0].executor.create_struct(Struct([(None, handle.value) for handle in handles]))
    return cast("tuple[object, ...]", await pull(struct))


_Kept = CalledFunction | ConstantArgument
_Made = LazyTask[ExecutorValue]


@attrs.define(eq=False)
class _ExecutorEntry:
    """An executor for a given number of clients, and the values that it keeps across calls.

    Attributes:
      executor: The executor.
      users: The number of calls that are using the executor.
      kept: The functions and shared constants that the executor keeps for later calls.
      brought: The values of closures that are currently being moved to the executor.
    """

    executor: Executor
    users: int = 0
    kept: WeakKeyDictionary[_Kept, _Made] = attrs.field(factory=lambda: WeakKeyDictionary[_Kept, _Made]())
    brought: dict[Closure, _Made] = attrs.field(factory=lambda: dict[Closure, _Made]())


class CoordinatedWorker(abc.ABC):
    """Runs closures on one worker until it is lost, with one executor per number of clients. Uses the driver's loop.

    Args:
      state: The scheduler's view of the worker.
      driver: The driver, which receives the worker's events.
    """

    def __init__(self, state: WorkerState, driver: Driver) -> None:
        self.state = state
        self._driver = driver
        self._scheduler = driver.scheduler
        self._entries: dict[int, _ExecutorEntry] = {}
        self._running: dict[Closure, ValueHandle] = {}
        # For each closure whose value is being fetched: the task, and the handles of all values that the task fetches.
        self._fetches: dict[Closure, tuple[asyncio.Task[None], Mapping[Closure, ValueHandle]]] = {}

    @abc.abstractmethod
    def _make_executor(self, clients: int) -> Executor:
        """Creates an executor for the given number of clients."""

    @abc.abstractmethod
    def _close_executor(self, executor: Executor) -> None:
        """Closes an executor. Never raises."""

    @abc.abstractmethod
    async def _started(self, executor: Executor, values: Sequence[ExecutorValue]) -> Outcomes:
        """Computes values until one has ended. Returns the error of each ended value, or `None` if it succeeded."""

    @abc.abstractmethod
    async def _stopped(self, handles: Sequence[ValueHandle]) -> None:
        """Stops the computation of values, if possible."""

    def close(self) -> None:
        """Closes the executors of this worker. Idempotent; never raises."""
        for entry in self._entries.values():
            self._close_executor(entry.executor)
        self._entries.clear()

    # The scheduler's decisions.

    def run(self, closures: Sequence[Closure]) -> None:
        """Runs closures. Closures whose arguments are on the worker run in one call; each other closure runs alone."""
        batches: dict[tuple[int, Closure | None], list[Closure]] = {}
        for closure in closures:
            call = closure.call  # `None` if the closure has been cancelled
            key = (0, closure) if call is None else (call.clients, None if self._is_quick(call) else closure)
            batches.setdefault(key, []).append(closure)
        self._scheduler.called(self.state, len(batches))
        for (clients, _), batch in batches.items():
            self._driver.start(self._run_batch(batch, clients))

    def stop(self, closures: Sequence[Closure]) -> None:
        """Stops cancelled closures that are running."""
        if handles := [self._running[closure] for closure in closures if closure in self._running]:
            self._driver.start(self._stop(handles))

    def fetch(self, closures: Sequence[Closure]) -> None:
        """Fetches values, grouped by executor into a few calls."""
        groups: dict[Executor, list[tuple[Closure, ValueHandle]]] = {}
        for closure in closures:
            handle = closure.held.get(self.state)
            if handle is None:  # the closure has been cancelled, or its value dropped
                self._driver.tell(self._scheduler.gone, closure, self.state)
            else:
                groups.setdefault(handle.executor, []).append((closure, handle))
        for group in groups.values():
            for start in range(0, len(group), _FETCH_BATCH):
                self._start_fetch(dict(group[start : start + _FETCH_BATCH]))

    def stop_fetching(self, closure: Closure) -> None:
        """Stops fetching a value, unless values that are fetched in the same call are still wanted."""
        if (found := self._fetches.pop(closure, None)) is not None:
            task, handles = found
            if not any(other in self.state.fetching for other in handles):
                task.cancel()

    # Running.

    async def _run_batch(self, closures: Sequence[Closure], clients: int) -> None:
        """Runs closures with the same number of clients, and then closures that the scheduler assigns meanwhile."""
        running: dict[ExecutorValue, Closure] = {}
        try:
            with self._in_use(clients) as executor:
                while True:
                    outcomes = await self._begun(closures, running)
                    if not outcomes and running and not self.state.lost:
                        outcomes = await self._outcomes(executor, running)
                    if self.state.lost:
                        return  # the scheduler has queued the closures again
                    closures = self._report(outcomes, clients)
                    if not closures and not running:
                        return
                    self._scheduler.called(self.state, 1)
        except RetryableError as error:
            self._driver.lose(self, error)
        except Exception as error:
            for closure in (*closures, *running.values()):
                self._driver.tell(self._scheduler.failed, closure, self.state, without_own_frames(error))
        finally:
            for closure in running.values():
                self._running.pop(closure, None)

    async def _begun(
        self, closures: Sequence[Closure], running: dict[ExecutorValue, Closure]
    ) -> dict[Closure, Exception | None]:
        """Creates the values of closures, and adds them to `running`.

        Returns:
          The closures that cannot run, each with its error, or with `None` if it was cancelled.
        """
        outcomes: dict[Closure, Exception | None] = {}
        for closure in closures:
            if (call := closure.call) is None:
                outcomes[closure] = None
                continue
            try:
                entry = self._entry(call.clients)
                handle = ValueHandle(entry.executor, await self._made(entry, call))
            except RetryableError:
                raise
            except Exception as error:
                outcomes[closure] = error
            else:
                self._running[closure] = handle
                running[handle.value] = closure
        return outcomes

    async def _outcomes(
        self, executor: Executor, running: dict[ExecutorValue, Closure]
    ) -> dict[Closure, Exception | None]:
        """Runs closures until at least one has ended, and returns the outcomes of those that have ended."""
        try:
            outcomes = await self._started(executor, list(running))
        except RetryableError:
            raise
        except Exception as error:
            closures = list(running.values())
            running.clear()
            if len(closures) == 1:
                return {closures[0]: error}
            for closure in closures:  # run the closures separately, to find the one that fails
                self.run([closure])
            return {}
        return {running.pop(value): outcome for value, outcome in outcomes.items()}

    def _report(self, outcomes: Mapping[Closure, Exception | None], clients: int) -> list[Closure]:
        """Reports the outcomes of closures to the scheduler, and starts the closures assigned in response.

        Returns:
          The assigned closures that can run in the same batch, which the caller has to run.
        """
        loss: Exception | None = None
        with self._driver.lock:
            for closure, error in sorted(outcomes.items(), key=lambda outcome: outcome[1] is not None):
                handle = self._running.pop(closure, None)
                if isinstance(error, RetryableError) and closure.state is ClosureState.RUNNING:
                    loss = error
                elif error is not None and not isinstance(error, RetryableError):
                    self._scheduler.failed(closure, self.state, without_own_frames(error))
                elif handle is None or error is not None:
                    self._scheduler.gone(closure, self.state)
                else:
                    self._scheduler.succeeded(closure, self.state, handle)
            self._scheduler.called(self.state, -1)
        if loss is not None:
            raise loss
        follow: list[Closure] = []
        others: list[Closure] = []
        for closure in self._driver.turn(self.state):
            call = closure.call
            goes_along = call is not None and call.clients == clients and self._is_quick(call)
            (follow if goes_along else others).append(closure)
        if others:
            self.run(others)
        return follow

    async def _stop(self, handles: Sequence[ValueHandle]) -> None:
        with contextlib.suppress(FedstackError, RetryableError):
            await self._stopped(handles)

    # Fetching values.

    def _start_fetch(self, handles: Mapping[Closure, ValueHandle]) -> None:
        task = self._driver.start(self._bring(handles))
        self._fetches.update(dict.fromkeys(handles, (task, handles)))

    async def _bring(self, handles: Mapping[Closure, ValueHandle]) -> None:
        payloads: Sequence[object] = ()
        failure: Exception | None = None
        try:
            payloads = await payloads_of(list(handles.values()))
        except RetryableError as error:
            self._driver.lose(self, error)
            return
        except Exception as error:
            failure = without_own_frames(error)
        wanted = [closure for closure in handles if self._fetches.pop(closure, None) is not None]
        if failure is not None and len(handles) > 1:  # fetch the values separately, to find the one that fails
            for closure in wanted:
                self._start_fetch({closure: handles[closure]})
            return
        found = dict(zip(handles, payloads))
        with self._driver.lock:
            for closure in wanted:
                if failure is None:
                    self._scheduler.copied(closure, found[closure], self.state)
                else:
                    self._scheduler.not_fetched(closure, self.state, failure)
        self._driver.turn()

    # Creating values.

    @contextlib.contextmanager
    def _in_use(self, clients: int) -> Generator[Executor, None, None]:
        """Provides the executor for the given number of clients, and keeps it open during the block."""
        entry = self._entry(clients)
        entry.users += 1
        try:
            yield entry.executor
        finally:
            entry.users -= 1

    def _is_quick(self, call: ClosureCall) -> bool:
        """Returns whether a call can start without first moving its function or arguments to the executor."""
        entry = self._entries.get(call.clients)
        return entry is not None and self._has(entry, call)

    def _entry(self, clients: int) -> _ExecutorEntry:
        found = self._entries.pop(clients, None)
        if found is None:
            self._close_idle()
            found = _ExecutorEntry(self._make_executor(clients))
        self._entries[clients] = found  # at the end, as the most recently used entry
        return found

    def _close_idle(self) -> None:
        """Closes the least recently used idle executors if there is no room for another executor."""
        if len(self._entries) < _MOST_EXECUTORS:
            return
        handles = [closure.held.get(self.state) for closure in list(self.state.values)]
        needed = {handle.executor for handle in handles if handle is not None}
        for clients, entry in list(self._entries.items())[: 1 - _MOST_EXECUTORS]:
            if not entry.users and entry.executor not in needed:
                self._close_executor(self._entries.pop(clients).executor)

    def _has(self, entry: _ExecutorEntry, part: Argument | CalledFunction | None) -> bool:
        """Returns whether an executor already holds a part of a call, so that nothing has to be moved to it first."""
        match part:
            case ClosureCall():
                return self._has(entry, part.function) and self._has(entry, part.argument)
            case StructArgument():
                return all(self._has(entry, member) for member in part.members)
            case ResultArgument():
                handle = part.closure.held.get(self.state)
                return handle is not None and handle.executor is entry.executor
            case CalledFunction() | ConstantArgument(is_shared=True):
                made = entry.kept.get(part)
                return made is not None and made.has_value
            case _:
                return True

    async def _made(self, entry: _ExecutorEntry, part: Argument | CalledFunction) -> ExecutorValue:
        """Creates a part of a call. Functions, shared constants and values of closures are created only once."""
        executor = entry.executor
        match part:
            case ClosureCall():
                function = await self._made(entry, part.function)
                argument = None if part.argument is None else await self._made(entry, part.argument)
                return await executor.create_call(function, argument)
            case StructArgument():
                members = [await self._made(entry, member) for member in part.members]
                return await executor.create_struct(Struct(list(zip(part.names, members))))
            case ResultArgument():
                if self._has(entry, part):
                    return part.closure.held[self.state].value
                return await _once(entry.brought, part.closure, lambda: self._brought(entry, part))
            case CalledFunction() | ConstantArgument(is_shared=True):
                return await _once(entry.kept, part, lambda: _created(executor, part))
            case _:
                return await _created(executor, part)

    async def _brought(self, entry: _ExecutorEntry, result: ResultArgument) -> ExecutorValue:
        closure = result.closure
        try:
            payload = await self._driver.payload_of(closure)
            value = await create_known(entry.executor, payload, result.type_signature)
            with self._driver.lock:
                if self.state not in closure.held:
                    self._scheduler.holds(closure, self.state, ValueHandle(entry.executor, value))
            return value
        finally:
            entry.brought.pop(closure, None)


async def _created(executor: Executor, part: CalledFunction | ConstantArgument) -> ExecutorValue:
    if isinstance(part, CalledFunction):
        return await executor.create_value(part.computation, part.type_signature)
    return await create_known(executor, part.payload, part.type_signature)


async def _once(made: MutableMapping[_K, _Made], key: _K, make: Callable[[], Any]) -> ExecutorValue:
    """Returns the value under a key, created once for all callers. After an error, the next caller tries again."""
    task = made.get(key)
    if task is None:
        task = made[key] = LazyTask(make)
    try:
        return await task.get()
    except Exception:
        if made.get(key) is task:
            del made[key]
        raise
