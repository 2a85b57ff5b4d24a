"""Defines the synchronous and the asynchronous coordinator."""

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
from fedstack.transport.peers.connection import Transport
from fedstack.transport.peers.io_loop import io_loop, start_apart


class _Coordinator(ClosesOnExit):
    """The base class of the synchronous and the asynchronous coordinator.

    Args:
      workers: The workers that run closures: addresses, a pool, or a cluster; or executor factories, one for each
        worker in this process.
      credentials: The certificates and the token to use if the workers are addresses.
      on_error: Whether an error cancels the other closures (`"cancel"`) or lets them run (`"continue"`).
      max_queued: The maximum number of closures that may be waiting or running. At this maximum, scheduling blocks.
      max_running: The maximum number of closures that run on one worker at the same time.
      connect_seconds: How long, in seconds, to wait for a reachable worker before all closures fail. Also the time
        limit for reaching a task that holds variables.
      transport: How to reach addresses: `"stream"`, `"grpc"`, or `"auto"` for streams where they can be reached.
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
        transport: Transport = "auto",
    ) -> None:
        if on_error not in ("cancel", "continue"):
            raise InvalidValueError(f"Expected on_error to be 'cancel' or 'continue', found {on_error!r}")
        check_whole_number("max_queued", max_queued, 1)
        check_whole_number("max_running", max_running, 1)
        check_number("connect_seconds", connect_seconds, endless=True)
        make_scheduler = partial(Scheduler, max_queued, max_running, on_error == "continue")
        driver = driver_of(workers, credentials, connect_seconds, make_scheduler, transport)
        self._calls = ScheduledCalls(driver)
        self._variables = VariableOwner(workers, credentials, driver.loop, connect_seconds, transport)
        self._closures = ClosureMaker(partial(_result_of, self._calls))
        weakref.finalize(self, _end, self._calls, self._variables).atexit = False

    def create_per_worker_value(self, source: object) -> PerWorkerValues:
        """Returns a value of which each worker has its own copy.

        Pass the value as an argument to Python functions. Only one closure at a time uses a worker's copy. If a worker
        is lost, its copy is created again.

        Args:
          source: A function that each worker calls to create its copy, or a value to copy to each worker.
        """
        return PerWorkerValues(source)

    def create_per_worker_dataset(self, source: Iterable[object] | Callable[[], Iterable[object]]) -> PerWorkerDataset:
        """Returns a dataset of which each worker has its own copy.

        Calling `iter` on the dataset returns a per-worker value: an iterator on each worker.

        Args:
          source: A dataset that can be iterated over repeatedly, or a function that each worker calls to create one.

        Raises:
          InvalidValueError: If `source` can be iterated over only once, or not at all.
        """
        return PerWorkerDataset(source)

    def close(self) -> None:
        """Cancels all remaining work and closes the connections. Idempotent; never raises."""
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
    """Releases the resources of a coordinator. Called as a finalizer, once the coordinator is no longer referenced."""
    calls.loop.call_soon(lambda: start_apart(calls.driver.end()))
    if variables.is_used:
        io_loop.call_soon(lambda: start_apart(variables.end()))


class ClusterCoordinator(_Coordinator):
    """Runs many calls concurrently, each on a free worker. Values stay on the workers until they are fetched."""

    def schedule(
        self,
        fn: object,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        repeatable: bool = True,
        prefetch: bool = False,
    ) -> RemoteValue:
        """Schedules a call and returns a handle to its value immediately.

        Blocks while `max_queued` closures are waiting or running.

        Args:
          fn: A computation or a Python function. A Python function is sent by value to workers that allow it. It
            receives its arguments unchanged, and the language infers the type of its result.
          args: The positional arguments. They may contain the values of other calls, at any depth.
          kwargs: The keyword arguments. Like `args`, they may contain the values of other calls.
          repeatable: Whether the call may run again if its worker or its value is lost.
          prefetch: Whether to fetch the value as soon as it is ready. Useful for small values that are always fetched.

        Raises:
          LeafError: If a function has raised an error since errors were last reported. The other calls are cancelled.
            The attribute `errors` of the exception contains all errors.
          TypeMismatchError: If the arguments do not match the function's parameters.
          ClosedError: If the coordinator is closed.
        """
        closure, call = self._closures.closure(fn, args, kwargs, repeatable, prefetch)
        while not self._calls.schedule(closure):
            self._calls.wait(self._calls.room())
        return RemoteValue(self, self._calls, closure, call)

    def join(self, timeout: float | None = None) -> None:
        """Waits until all calls have ended.

        Raises:
          LeafError: If a function has raised an error; see `schedule`.
          WorkerUnavailableError: If no worker was reachable within `connect_seconds`.
          DeadlineExceededError: If the calls take longer than `timeout` seconds. They continue to run.
        """
        check_timeout(timeout)
        self._calls.wait(self._calls.join(timeout, self))

    def done(self) -> bool:
        """Returns whether all calls have ended.

        Raises:
          LeafError: If a function has raised an error; see `schedule`.
        """
        return self._calls.is_done()

    def fetch(self, structure: object, timeout: float | None = None) -> Any:
        """Waits for the values of the handles in a structure, and returns the structure with values instead of handles.

        Raises:
          LeafError: If the function of one of the calls has raised an error.
          DeadlineExceededError: If the values are not available within `timeout` seconds.
        """
        check_timeout(timeout)
        return self._calls.wait(fetched(structure, timeout, self))

    def variable(self, initial_value: object, type_spec: object = None) -> Variable:
        """Creates a variable: state that scheduled functions and this program can read and change.

        A task of job `ps` stores the value. If the cluster has no such task, a server in this process stores the value
        and listens on a loopback address.

        Args:
          initial_value: The initial value, or a function that returns it.
          type_spec: The type of the value. By default, the language infers it: Python numbers become int32 or float32.

        Raises:
          TypeMismatchError: If the initial value does not have the type `type_spec`.
          WorkerUnavailableError: If the server that is to store the value cannot be reached.
        """
        return Variable(*io_loop.run_sync(self._variables.make(initial_value, type_spec)))


class AsyncClusterCoordinator(_Coordinator):
    """A `ClusterCoordinator` whose methods are coroutines, for use on any event loop."""

    async def schedule(
        self,
        fn: object,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        repeatable: bool = True,
        prefetch: bool = False,
    ) -> RemoteValue:
        """Schedules a call; see `ClusterCoordinator.schedule`. Waits only while the queue is full."""
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
        """Returns a structure with values instead of handles; see `ClusterCoordinator.fetch`."""
        check_timeout(timeout)
        return await self._calls.loop.run(fetched(structure, timeout, self))

    async def variable(self, initial_value: object, type_spec: object = None) -> AsyncVariable:
        """Creates a variable; see `ClusterCoordinator.variable`."""
        return AsyncVariable(*await io_loop.run(self._variables.make(initial_value, type_spec)))
