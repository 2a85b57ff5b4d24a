"""What the coordinators for programs with and without an event loop have in common."""

import weakref
from collections.abc import Callable, Iterable
from functools import partial

from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.number_checks import check_number, check_whole_number
from fedstack.service.coordinator.calls.calls import Result
from fedstack.service.coordinator.calls.closure_maker import ClosureMaker
from fedstack.service.coordinator.calls.per_worker import (
    PerWorkerDataset,
    PerWorkerValues,
    per_worker_dataset,
    per_worker_value,
)
from fedstack.service.coordinator.driver import Driver
from fedstack.service.coordinator.remote_value import RemoteValue
from fedstack.service.coordinator.scheduling.scheduler import MOST_QUEUED, MOST_RUNNING, Scheduler
from fedstack.service.coordinator.variables.variable_owner import VariableOwner
from fedstack.service.coordinator.workforce import Workers, workforce_of
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.io_loop import io_loop, start_apart


class Front(ClosesOnExit):
    """The face of a driver.

    Args:
      workers: Where closures run: addresses, a pool, a cluster; or factories of executors in this process, one for each
        worker.
      credentials: Certificates and the token, where these are addresses.
      on_error: What an error of a closure means for the others: `"cancel"` or `"continue"`.
      max_queued: How many closures may wait and run; to schedule more waits.
      max_running: How many run at one worker at the same time.
      connect_seconds: How long to wait when there is no worker, before all closures fail, and for a task that is to
        hold variables.
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
        workforce = workforce_of(workers, credentials, connect_seconds)
        goes_on = on_error == "continue"
        scheduler = Scheduler(max_queued, max_running, goes_on=goes_on, clock=workforce.io.time)
        self._driver = Driver(scheduler, workforce)
        self._variables = VariableOwner(workers, credentials, workforce.io, connect_seconds)
        self._closures = ClosureMaker(partial(_result_of, self._driver))
        weakref.finalize(self, _end, self._driver, self._variables).atexit = False

    def create_per_worker_value(self, source: object) -> PerWorkerValues:
        """Returns a value that each worker makes by calling a function, or its own copy of a value.

        Give it as an argument of Python functions. One closure at a time uses that of a worker; it is made anew where a
        worker was lost.
        """
        return per_worker_value(source)

    def create_per_worker_dataset(self, source: Iterable[object] | Callable[[], Iterable[object]]) -> PerWorkerDataset:
        """Returns a dataset of which each worker has its own; `iter` of it gives an iterator for each worker.

        Args:
          source: What can be iterated over again and again, or a function that returns it, called at each worker.

        Raises:
          InvalidValueError: If it can be iterated over once only, or not at all.
        """
        return per_worker_dataset(source)

    def close(self) -> None:
        """Cancels what is left to do, and closes the connections. Idempotent; never raises."""
        if not self._closed:
            self._closed = True
            self._driver.loop.finish(self._driver.end(), timeout=5.0)
            if self._variables.is_used:
                io_loop.finish(self._variables.end())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self._closed else f'of {self._driver.outlook}'}>"


def _result_of(driver: Driver, value: object) -> Result | None:
    return value.as_argument(driver) if isinstance(value, RemoteValue) else None


def _end(driver: Driver, variables: VariableOwner) -> None:
    """Ends what a coordinator that nobody refers to any more has had; a finalizer."""
    driver.loop.call_soon(lambda: start_apart(driver.end()))
    if variables.is_used:
        io_loop.call_soon(lambda: start_apart(variables.end()))
