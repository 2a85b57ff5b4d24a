"""What the coordinators for programs with and without an event loop have in common."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import attrs

from fedstack.computations.types.language import ConcreteComputation, ExecutorFactory, Type, infer_type
from fedstack.computations.values.snapshots import snapshot_of
from fedstack.computations.values.tensor_values import describe
from fedstack.computations.values.values import normalize
from fedstack.errors import ForeignValueError, InvalidValueError
from fedstack.executors.base.verb_executor import to_declared_type
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.executors.concurrency.off_loop import off_loop
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.executors.fleet.fleet_driver import FleetDriver
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.service.coordinator.calls.calls import Call, Function, Result, call_of, function_name, needs_of
from fedstack.service.coordinator.calls.per_worker import (
    PerWorkerDataset,
    PerWorkerValues,
    per_worker_dataset,
    per_worker_value,
)
from fedstack.service.coordinator.calls.python_calls import function_of, opener_for, python_call
from fedstack.service.coordinator.driver import Driver, Workforce
from fedstack.service.coordinator.remote_value import RemoteValue
from fedstack.service.coordinator.scheduling.closures import Closure
from fedstack.service.coordinator.scheduling.scheduler import MOST_QUEUED, MOST_RUNNING, Scheduler
from fedstack.service.coordinator.variables.held_variable import HeldVariable, VariableServer
from fedstack.service.coordinator.variables.variable_owner import VariableOwner
from fedstack.service.coordinator.workforce import FleetWorkforce, LocalWorkforce
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.io_loop import io_loop, start_apart

Workers: TypeAlias = "WorkerTargets | ExecutorFactory | Sequence[ExecutorFactory]"
# So many functions are known at workers although nothing refers to them just now.
_MOST_FUNCTIONS = 256


class Front(ClosesOnExit):
    """The face of a driver.

    Args:
      workers: Where closures run: addresses, a pool, a cluster; or factories of executors in this process, one for each
        worker.
      credentials: Certificates and the token, where these are addresses.
      on_error: What an error of a closure means for the others: `"cancel"` or `"continue"`.
      max_queued: How many closures may wait and run; to schedule more waits.
      max_running: How many run at one worker at the same time.
      connect_seconds: How long to wait when there is no worker, before all closures fail.
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
        workforce = _workforce_of(workers, credentials, connect_seconds)
        goes_on = on_error == "continue"
        scheduler = Scheduler(max_queued, max_running, goes_on=goes_on, clock=workforce.io.time)
        self._driver = Driver(scheduler, workforce)
        self._variables = VariableOwner(workers, credentials)
        self._functions: OrderedDict[tuple[object, ...], tuple[object, Function]] = OrderedDict()
        weakref.finalize(self, _end, self._driver, self._variables).atexit = False

    def _closure(
        self,
        fn: object,
        args: Sequence[object] | None,
        kwargs: Mapping[str, object] | None,
        repeatable: bool,
        prefetch: bool,
    ) -> tuple[Closure, Call]:
        """Returns what is to be scheduled, and what it runs."""
        if not isinstance(cast(object, args), (list, tuple, type(None))):
            raise InvalidValueError(f"Expected args as a tuple or list, found {describe(args)}; write (value,) for one")
        if not isinstance(cast(object, kwargs), (Mapping, type(None))):
            raise InvalidValueError(f"Expected kwargs as a dictionary of arguments by name, found {describe(kwargs)}")
        if isinstance(fn, ConcreteComputation):
            function = self._function((fn,), lambda: Function(fn, function_name(fn)))
            call = call_of(function, args or (), kwargs or {}, self._result_of, self._opener_for)
        elif callable(fn):
            called, name = fn, function_name(fn)

            def function_for(types: Sequence[Type]) -> Function:
                return self._function((called, *map(str, types)), lambda: function_of(called, name, types))

            call = python_call(name, args or (), kwargs or {}, self._result_of, function_for)
        else:
            raise InvalidValueError(f"Expected a computation or a Python function to schedule, found {describe(fn)}")
        closure = Closure(call, needs_of(call.argument), repeatable, prefetch, call.function.name)
        return closure, call

    def _function(self, key: Sequence[object], make: Callable[[], Function]) -> Function:
        """Returns what workers run: the same as for an earlier call if there was one of the same key."""
        # By identity: to compare computations by content, as the language does, takes long.
        known = tuple(part if isinstance(part, str) else id(part) for part in key)
        found = self._functions.get(known)
        if found is None:
            found = self._functions[known] = key, make()
            if len(self._functions) > _MOST_FUNCTIONS:
                self._functions.popitem(last=False)
        return found[1]

    def _opener_for(self, expected: Type) -> Function:
        return self._function((str(expected),), lambda: opener_for(expected))

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

    async def _variable(self, initial_value: object, type_spec: object) -> tuple[HeldVariable, VariableServer, object]:
        declared = infer_type(initial_value) if type_spec is None else to_declared_type(type_spec)
        if declared is None:
            raise InvalidValueError(
                f"Expected an initial value that with a type, found {describe(initial_value)}; give one, or type_spec"
            )
        payload = normalize(initial_value, declared, "initial_value")
        keep = snapshot_of(declared)
        return await self._variables.make(payload if keep is None else keep(payload, None), declared)

    def _result_of(self, value: object) -> Result | None:
        if not isinstance(value, RemoteValue):
            return None
        if value.driver is not self._driver:
            raise ForeignValueError(f"Expected a value of this coordinator, found {value!r} of another one")
        return Result(value.closure, value.type_signature, value.boxed)

    def _value(self, closure: Closure, call: Call) -> RemoteValue:
        """Returns what stands for the value of a closure that was scheduled, and may have ended."""
        return RemoteValue(self, self._driver, closure, call.result_type, call.boxed)

    async def _fetched(self, structure: object) -> object:
        values = list(dict.fromkeys(_remote_values(structure)))
        # By the coordinator that each is of.
        payloads = await gather([value.driver.bring_home(value.closure) for value in values])
        found = dict(zip(values, payloads))

        def result(value: RemoteValue) -> object:
            return value.result_of(found[value])

        return await off_loop(lambda: _replaced(structure, result))

    def close(self) -> None:
        """Cancels what is left to do, and closes the connections. Idempotent; never raises."""
        if not self._closed:
            self._closed = True
            self._driver.loop.finish(self._driver.end(), timeout=5.0)
            if self._variables.is_used:
                io_loop.finish(self._variables.end())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' closed' if self._closed else ''} over {self._driver!r}>"


def _end(driver: Driver, variables: VariableOwner) -> None:
    """Ends what a coordinator that nobody refers to any more has had; a finalizer."""
    driver.loop.call_soon(lambda: start_apart(driver.end()))
    if variables.is_used:
        io_loop.call_soon(lambda: start_apart(variables.end()))


def _workforce_of(workers: Workers, credentials: ClientCredentials | None, connect_seconds: float) -> Workforce:
    listed = cast("Sequence[object]", workers if isinstance(workers, (list, tuple)) else [workers])
    factories = [one for one in listed if isinstance(one, ExecutorFactory)]
    if factories:
        if len(factories) < len(listed):
            raise InvalidValueError(f"Expected factories only, or places only, found both in {describe(workers)}")
        return LocalWorkforce(factories)
    stubs = make_stubs(cast(WorkerTargets, workers), credentials)
    if not stubs:
        raise InvalidValueError("Expected at least one worker, found none; give its address, as in 'localhost:8000'")
    return FleetWorkforce(FleetDriver(stubs, connect_seconds), workers)


def _members_of(structure: object) -> Sequence[object]:
    if isinstance(structure, Mapping):
        return list(cast("Mapping[object, object]", structure).values())
    if isinstance(structure, (list, tuple)):
        return cast("Sequence[object]", structure)
    if attrs.has(type(structure)):
        return [getattr(structure, field.name) for field in attrs.fields(type(structure))]
    return ()


def _remote_values(structure: object) -> Sequence[RemoteValue]:
    if isinstance(structure, RemoteValue):
        return [structure]
    return [value for member in _members_of(structure) for value in _remote_values(member)]


def _replaced(structure: object, result: Callable[[RemoteValue], object]) -> object:
    """Returns a structure with results in place of what stands for them; all else stays as it is."""
    if isinstance(structure, RemoteValue):
        return result(structure)
    before = _members_of(structure)
    members = [_replaced(member, result) for member in before]
    if all(new is old for new, old in zip(members, before)):
        return structure
    container = cast("type[Any]", type(structure))
    if issubclass(container, Mapping):
        return cast(Any, container)(zip(cast("Mapping[object, object]", structure), members))
    if attrs.has(container):
        names = [field.alias for field in attrs.fields(container)]
        return attrs.evolve(cast(Any, structure), **dict(zip(names, members)))
    return container(*members) if hasattr(container, "_fields") else container(members)
