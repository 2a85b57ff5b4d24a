"""Defines the coordinators, for programs with and without an event loop."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.number_checks import check_number, check_whole_number
from fedstack.service.coordinator.calls.closure_maker import ClosureMaker
from fedstack.service.coordinator.calls.closures import ResultArgument
from fedstack.service.coordinator.calls.python_calls import (
    PerWorkerDataset,
    PerWorkerValues,
)
from fedstack.service.coordinator.queues import MOST_RUNNING
from fedstack.service.coordinator.remote_value import RemoteValue, fetched
from fedstack.service.coordinator.scheduled_calls import ScheduledCalls, check_timeout
from fedstack.service.coordinator.scheduler import MOST_QUEUED, Scheduler
from fedstack.service.coordinator.variable_owner import VariableOwner
from fedstack.service.coordinator.variables import AsyncVariable, Variable
from fedstack.service.coordinator.workforce import Workers, driver_of
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.io_loop import io_loop, start_apart


class _Coordinator(ClosesOnExit):
    """The base of both coordinators.

    Args:
      workers: Where closures run: addresses, a pool, a cluster; or factories of executors in this process, one for each
        worker.
      credentials: Certificates and the token, if the workers are addresses.
      on_error: What happens to the other closures after an error: `"cancel"` or `"continue"`.
      max_queued: How many closures may wait and run; scheduling more blocks.
      max_running: How many closures run at one worker at the same time.
      connect_seconds: How long to wait, in seconds, for a worker when there is none before all closures fail, and for a
        task that should hold variables.
    """

    def __init__(
        self,
        workers: Workers,
        credentials: ClientCredentials | None = None,
        *,
        on_error: str = "cancel",
        max_queued: int = MOST_QUEUED,
        max_running: int = MOST_RUNNING,
        connect_seconds: float = 30.0,
    ) -> None:
        if on_error not in ("cancel", "continue"):
            raise InvalidValueError(f"Expected on_error to be 'cancel' or 'continue', found {on_error!r}")
        check_whole_number("max_queued", max_queued, 1)
        check_whole_number("max_running", max_running, 1)
        check_number("connect_seconds", connect_seconds, endless=True)
        make_scheduler = partial(Scheduler, max_queued, max_running, on_error == "continue")
        driver = driver_of(workers, credentials, connect_seconds, make_scheduler)
        self._calls = ScheduledCalls(driver)
        self._variables = VariableOwner(workers, credentials, driver.loop, connect_seconds)
        self._closures = ClosureMaker(partial(_result_of, self._calls))
        weakref.finalize(self, _end, self._calls, self._variables).atexit = False

    def create_per_worker_value(self, source: object) -> PerWorkerValues:
        """Returns a value that each worker creates by calling a function, or copies from a value.

        Pass it as an argument to Python functions. One closure at a time uses a worker's copy, which is created again
        after the worker was lost.
        """
        return PerWorkerValues(source)

    def create_per_worker_dataset(self, source: Iterable[object] | Callable[[], Iterable[object]]) -> PerWorkerDataset:
        """Returns a dataset that each worker has a copy of; `iter` of it returns an iterator for each worker.

        Args:
          source: A re-iterable dataset, or a function that returns one, called at each worker.

        Raises:
          InvalidValueError: If it can be iterated over only once, or not at all.
        """
        return PerWorkerDataset(source)

    def close(self) -> None:
        """Cancels all remaining work, and closes the connections. Idempotent; never raises."""
        if not self._closed:
            self._closed = True
            self._calls.loop.finish(self._calls.driver.end(), timeout=5.0)
            if self._variables.is_used:
                io_loop.finish(self._variables.end())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self._closed else f'of {self._calls!r}'}>"


def _result_of(calls: ScheduledCalls, value: object) -> ResultArgument | None:
    return value.as_argument(calls) if isinstance(value, RemoteValue) else None


def _end(calls: ScheduledCalls, variables: VariableOwner) -> None:
    """Releases the resources of a coordinator that is no longer referenced; a finalizer."""
    calls.loop.call_soon(lambda: start_apart(calls.driver.end()))
    if variables.is_used:
        io_loop.call_soon(lambda: start_apart(variables.end()))


class ClusterCoordinator(_Coordinator):
    """Runs calls at any free worker, any number at a time; their values stay there until they are fetched."""

    def schedule(
        self,
        fn: object,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        repeatable: bool = True,
        prefetch: bool = False,
    ) -> RemoteValue:
        """Schedules a call, and returns a handle to its value at once.

        If `max_queued` closures are waiting or running, this blocks until there is room for another.

        Args:
          fn: A computation, or a Python function, which is sent by value to workers that allow it. It gets its
            arguments unchanged, and its result has the type that the language infers.
          args: Its arguments by position.
          kwargs: Its arguments by name. Values of other calls may appear anywhere in either.
          repeatable: Whether it may run again if its worker is lost, or its value with it.
          prefetch: Whether to fetch the value as soon as it is ready; for small values that are fetched anyway.

        Raises:
          LeafError: If a function has raised since errors were last reported; the other calls are cancelled. Its
            attribute `errors` has all errors.
          TypeMismatchError: If the arguments do not fit.
          ClosedError: After `close`.
        """
        closure, call = self._closures.closure(fn, args, kwargs, repeatable, prefetch)
        while not self._calls.schedule(closure):
            self._calls.wait(self._calls.room())
        return RemoteValue(self, self._calls, closure, call)

    def join(self, timeout: float | None = None) -> None:
        """Waits until all calls have ended.

        Raises:
          LeafError: If a function has raised; see `schedule`.
          WorkerUnavailableError: If no worker was available for too long.
          DeadlineExceededError: If it takes longer than `timeout` seconds; the calls continue.
        """
        check_timeout(timeout)
        self._calls.wait(self._calls.join(timeout, self))

    def done(self) -> bool:
        """Returns whether all calls have ended.

        Raises:
          LeafError: If a function has raised; see `schedule`.
        """
        return self._calls.is_done()

    def fetch(self, structure: object, timeout: float | None = None) -> Any:
        """Returns a structure with the handles in it replaced by their values.

        Raises:
          LeafError: If the function of one of the calls raised.
          DeadlineExceededError: If it takes longer than `timeout` seconds.
        """
        check_timeout(timeout)
        return self._calls.wait(fetched(structure, timeout, self))

    def variable(self, initial_value: object, type_spec: object = None) -> Variable:
        """Returns a variable: state that functions and this program read and change, wherever they run.

        A task of job `ps` holds it, or if the cluster has none, a server of this process at a loopback address.

        Args:
          initial_value: Its initial value, or a function that returns it.
          type_spec: Its type; by default the type that the language infers: Python numbers are int32 and float32.

        Raises:
          TypeMismatchError: If the value does not fit.
          WorkerUnavailableError: If no server that should hold it can be reached.
        """
        return Variable(*io_loop.run_sync(self._variables.make(initial_value, type_spec)))


class AsyncClusterCoordinator(_Coordinator):
    """A `ClusterCoordinator` with coroutines, for use from any event loop."""

    async def schedule(
        self,
        fn: object,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        repeatable: bool = True,
        prefetch: bool = False,
    ) -> RemoteValue:
        """Schedules a call; see `ClusterCoordinator.schedule`. It waits only if there is no room for another."""
        closure, call = self._closures.closure(fn, args, kwargs, repeatable, prefetch)
        while not self._calls.schedule(closure):
            await self._calls.loop.run(self._calls.room())
        return RemoteValue(self, self._calls, closure, call)

    async def join(self, timeout: float | None = None) -> None:
        """Waits until all calls have ended; see `ClusterCoordinator.join`."""
        check_timeout(timeout)
        await self._calls.loop.run(self._calls.join(timeout, self))

    async def done(self) -> bool:
        """Returns whether all calls have ended; see `ClusterCoordinator.done`."""
        return self._calls.is_done()

    async def fetch(self, structure: object, timeout: float | None = None) -> Any:
        """Returns a structure with the handles in it replaced by their values; see `ClusterCoordinator.fetch`."""
        check_timeout(timeout)
        return await self._calls.loop.run(fetched(structure, timeout, self))

    async def variable(self, initial_value: object, type_spec: object = None) -> AsyncVariable:
        """Returns a variable; see `ClusterCoordinator.variable`."""
        return AsyncVariable(*await io_loop.run(self._variables.make(initial_value, type_spec)))
