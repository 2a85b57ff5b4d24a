"""Defines the coordinator for programs without an event loop."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedstack.service.coordinator.front import Front
from fedstack.service.coordinator.remote_value import RemoteValue, fetched
from fedstack.service.coordinator.time_bounds import check_timeout
from fedstack.service.coordinator.variables.variable import Variable
from fedstack.transport.peers.io_loop import io_loop


class ClusterCoordinator(Front):
    """Runs calls at whichever worker is free, any number at a time; their values stay there until they are fetched."""

    def schedule(
        self,
        fn: object,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        repeatable: bool = True,
        prefetch: bool = False,
    ) -> RemoteValue:
        """Schedules a call, and returns at once what stands for its value.

        If as many closures wait as may, it waits until there is room for one more.

        Args:
          fn: A computation, or a Python function, which goes by value to workers that allow that. It gets its arguments
            as they are, and what it returns has the type that the language infers.
          args: Its arguments by position.
          kwargs: Its arguments by name. Values of other calls may stand anywhere in either.
          repeatable: Whether it may run again if its worker is lost, or its value with it.
          prefetch: Whether to bring the value here as soon as it is there, for small ones that are fetched anyway.

        Raises:
          LeafError: If a function has raised since this was last asked; the others are cancelled. Its attribute
            `errors` has all that went wrong.
          TypeMismatchError: If the arguments do not fit.
          ClosedError: After `close`.
        """
        closure, call = self._closures.closure(fn, args, kwargs, repeatable, prefetch)
        while not self._driver.schedule(closure):
            self._driver.wait(self._driver.room())
        return RemoteValue(self, self._driver, closure, call)

    def join(self, timeout: float | None = None) -> None:
        """Waits until all calls have ended.

        Raises:
          LeafError: If a function has raised; see `schedule`.
          WorkerUnavailableError: If there was no worker for too long.
          DeadlineExceededError: If it takes longer than `timeout` seconds; the calls go on.
        """
        check_timeout(timeout)
        self._driver.wait(self._driver.join(timeout, self))

    def done(self) -> bool:
        """Returns whether all calls have ended.

        Raises:
          LeafError: If a function has raised; see `schedule`.
        """
        return self._driver.is_done()

    def fetch(self, structure: object, timeout: float | None = None) -> Any:
        """Returns a structure with the values of calls in place of what stands for them.

        Raises:
          LeafError: If the function of one of them raised.
          DeadlineExceededError: If it takes longer than `timeout` seconds.
        """
        check_timeout(timeout)
        return self._driver.wait(fetched(structure, timeout, self))

    def variable(self, initial_value: object, type_spec: object = None) -> Variable:
        """Returns a variable: state that functions read and change wherever they run, and this program too.

        A task of job `ps` holds it, or where the cluster has none, a server of this process at a loopback address.

        Args:
          initial_value: Its value, or a function that returns it.
          type_spec: The type; by default the one that the language infers: Python's own numbers are int32 and float32.

        Raises:
          TypeMismatchError: If the value does not fit.
          WorkerUnavailableError: If no server can be reached that is to hold it.
        """
        return Variable(*io_loop.run_sync(self._variables.make(initial_value, type_spec)))
