"""Creates and computes values in the executor of a session, by their payloads where the executor is one of ours."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fedstack.computations.columns import with_columns
from fedstack.computations.containers import to_result
from fedstack.computations.federated_values import check_clients, normalize_argument
from fedstack.computations.intrinsics import same_without_names
from fedstack.computations.language import (
    Executor,
    ExecutorValue,
    FunctionType,
    Struct,
    Type,
    computation_pb2,
)
from fedstack.errors import FedstackError, InvalidValueError, UnsupportedIntrinsicError
from fedstack.executors.delegating_executor import DelegatingExecutor
from fedstack.executors.lazy_executor import LazyExecutor
from fedstack.executors.lazy_values import KnownValue, LazyValue
from fedstack.executors.placed_executor import PlacedExecutor


async def create_known(executor: Executor, payload: object, type_spec: Type) -> ExecutorValue:
    """Creates a value of a payload that fits its type; columns may be lists.

    Raises:
      CardinalityError: If it has values for another number of clients than the executor has.
    """
    payload = with_columns(payload, type_spec)
    check_clients(payload, type_spec, clients_of(executor))
    if isinstance(executor, LazyExecutor):
        return executor.known(payload, type_spec)
    return await executor.create_value(to_result(payload, type_spec), type_spec)


async def create_computation(executor: Executor, computation: computation_pb2.Computation) -> ExecutorValue:
    """Creates a function, or what a computation yields."""
    return await executor.create_value(computation)


async def create_call(executor: Executor, function: ExecutorValue, argument: ExecutorValue | None) -> ExecutorValue:
    """Calls a function. Names in the argument's type do not matter: peers leave them out, or have others."""
    declared = function.type_signature
    if isinstance(argument, LazyValue) and isinstance(declared, FunctionType) and declared.parameter is not None:
        found = argument.type_signature
        if not declared.parameter.is_assignable_from(found) and same_without_names(declared.parameter, found):
            argument = argument.retyped(declared.parameter)
    return await executor.create_call(function, argument)


async def create_struct(executor: Executor, members: Sequence[tuple[str, ExecutorValue]]) -> ExecutorValue:
    """Packs values into a struct; an empty name is none.

    Raises:
      InvalidValueError: If a name comes twice, or is one that the language keeps for itself.
    """
    try:
        return await executor.create_struct(Struct([(name or None, value) for name, value in members]))
    except FedstackError:
        raise
    except ValueError as error:
        raise InvalidValueError(
            f"Expected a struct with names that the language allows, found {error}; leave the names out, or change them"
        ) from error


async def compute(value: ExecutorValue) -> object:
    """Runs what a value needs and returns its payload."""
    if isinstance(value, LazyValue):
        return await value.pull()
    return normalize_argument(await value.compute(), value.type_signature, "result")


def known_payload(value: ExecutorValue) -> tuple[object, Type] | None:
    """Returns the payload and the type of a value for which nothing has to run; `None` for any other."""
    return (value.payload, value.type_signature) if isinstance(value, KnownValue) else None


def phase_executor(executor: Executor) -> PlacedExecutor:
    """Returns the executor of client phases in a stack.

    Raises:
      UnsupportedIntrinsicError: If it has none.
    """
    found = find_phase_executor(executor)
    if found is None:
        raise UnsupportedIntrinsicError(
            f"Expected a stack that runs client phases, found {executor!r}; send values and calls one by one"
        )
    return found


def clients_of(executor: Executor) -> int | None:
    """Returns how many clients an executor has, if that can be told."""
    placed = find_phase_executor(executor)
    return None if placed is None else placed.clients


def find_phase_executor(executor: Executor) -> PlacedExecutor | None:
    """Returns the executor of client phases in a stack, if there is one."""
    while isinstance(executor, DelegatingExecutor):
        executor = executor.target
    return executor if isinstance(executor, PlacedExecutor) else None


class Pull:
    """The computing of one value, shared by all calls that wait for it.

    When the last of them has gone away it is cancelled; one that is only to ask again soon leaves it running for a
    while.

    Args:
      value: The value.
      grace_seconds: For how long it goes on when nobody waits.
    """

    def __init__(self, value: ExecutorValue, grace_seconds: float) -> None:
        self._task = asyncio.ensure_future(compute(value))
        self._task.add_done_callback(look_at)
        self._grace = grace_seconds
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._was_cancelled = False

    @property
    def was_cancelled(self) -> bool:
        """Whether it ends without an outcome, or has: nothing to join in."""
        return self._was_cancelled or self._task.cancelled()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end, at most so many seconds; tells whether it has come."""
        self._waiting += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        cancelled = True
        try:
            await asyncio.wait([self._task], timeout=seconds)
            cancelled = False
            return self._task.done()
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                if cancelled:
                    self.cancel()
                else:
                    self._timer = asyncio.get_running_loop().call_later(self._grace, self._give_up)

    def result(self) -> object:
        """Returns the payload, or raises what the computing raised."""
        return self._task.result()

    def _give_up(self) -> None:
        if not self._waiting:
            self.cancel()

    def cancel(self) -> None:
        """Ends the computing."""
        if self._timer is not None:
            self._timer.cancel()
        self._was_cancelled = True
        self._task.cancel()


def look_at(task: "asyncio.Future[Any]") -> None:
    """Takes note of an outcome that nobody may ask for: asyncio would complain."""
    if not task.cancelled():
        task.exception()
