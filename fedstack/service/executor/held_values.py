"""Creates and computes values in the executor of a session; by their payloads if the executor is one of ours."""

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from fedstack.computations.codec.payload_sizes import is_quick
from fedstack.computations.leaves.work_scope import change_scope, current_scope
from fedstack.computations.plan.plan import plans
from fedstack.computations.types.language import (
    ConcreteComputation,
    Executor,
    ExecutorValue,
    FunctionType,
    Struct,
    StructType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_sizes import count_leaves, struct_depth
from fedstack.computations.types.type_structure import contains_sequence, fields_of
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.federated_values import check_clients
from fedstack.errors import FedstackError, InvalidValueError, UnsupportedIntrinsicError
from fedstack.executors.base.lazy_values import FunctionValue, KnownValue
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.verb_executor import Run, VerbExecutor, known_clients_of, phases_of, pull
from fedstack.executors.concurrency.coroutines import run_at_once
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.executors.concurrency.progress import ObservedCounts, ProgressCounts
from fedstack.foundations.traceback_filter import consume_exception
from fedstack.service.host.limits import ServiceLimits, check_sizes

_T = TypeVar("_T")
# The most tensors, or members of a struct, that are checked on the loop.
_FEW_MEMBERS = 1000


async def create_known(executor: Executor, payload: object, type_spec: Type) -> ExecutorValue:
    """Creates a value from a payload that fits its type.

    Raises:
      CardinalityError: If it has values for another number of clients than the executor has.
    """
    check_clients(payload, type_spec, known_clients_of(executor))
    if isinstance(executor, VerbExecutor):
        return await executor.create_known(payload, type_spec)
    return await executor.create_value(await off_loop(lambda: to_result(payload, type_spec)), type_spec)


async def create_computation(executor: Executor, computation: computation_pb2.Computation) -> ExecutorValue:
    """Creates a function, or what a computation yields."""
    return await _create(executor, lambda: executor.create_value(computation), plans.knows(computation))


async def create_call(executor: Executor, function: ExecutorValue, argument: ExecutorValue | None) -> ExecutorValue:
    """Calls a function; `matched` reorders the members of the argument."""
    leaves = count_leaves(function.type_signature) + (0 if argument is None else count_leaves(argument.type_signature))
    is_traced = not isinstance(function, FunctionValue) or plans.knows(function.computation)
    return await _create(executor, lambda: _called(executor, function, argument), is_traced and leaves <= _FEW_MEMBERS)


async def _called(executor: Executor, function: ExecutorValue, argument: ExecutorValue | None) -> ExecutorValue:
    declared = function.type_signature
    if argument is not None and isinstance(declared, FunctionType) and declared.parameter is not None:
        argument = await matched(executor, argument, declared.parameter)
    return await executor.create_call(function, argument)


async def matched(executor: Executor, value: ExecutorValue, wanted: Type) -> ExecutorValue:
    """Reorders the members of structs as in a type: by name if both have the same names.

    Where the value has no names, or the type has none, they stay in their order: plain peers leave names out. What has
    other names than the type is left as it is, for the caller to refuse.
    """
    found = value.type_signature
    if not isinstance(wanted, StructType) or not isinstance(found, StructType) or wanted.is_assignable_from(found):
        return value
    fields = fields_of(wanted)
    names, theirs = [name for name, _ in fields], [name for name, _ in fields_of(found)]
    positions = list(range(len(theirs)))
    if None not in names and None not in theirs and set(names) == set(theirs):
        places = {name: position for position, name in enumerate(theirs)}
        positions = [places[name] for name in names]
    elif len(names) != len(theirs) or any(None not in (a, b) and a != b for a, b in zip(names, theirs)):
        return value
    members = [await executor.create_selection(value, position) for position in positions]
    members = [await matched(executor, member, type_spec) for member, (_, type_spec) in zip(members, fields)]
    return await executor.create_struct(Struct(list(zip(names, members))))


async def create_struct(
    executor: Executor, members: Sequence[tuple[str, ExecutorValue]], limits: ServiceLimits
) -> ExecutorValue:
    """Packs values into a struct; an empty name means none.

    Raises:
      ResourceLimitError: If it has too many tensors or nested structs.
      InvalidValueError: If a name comes twice, or is one that the language keeps for itself.
    """
    # Each struct may contain the one before it twice: its size is checked when it is made, before anything walks over
    # it.
    types = [value.type_signature for _, value in members]
    check_sizes(limits, sum(map(count_leaves, types)), 1 + max(map(struct_depth, types), default=0))
    try:
        struct = Struct([(name or None, value) for name, value in members])
        return await _create(executor, lambda: executor.create_struct(struct), len(members) <= _FEW_MEMBERS)
    except FedstackError:
        raise
    except ValueError as error:
        raise InvalidValueError(
            f"Expected a struct with names that the language allows, found {error}; leave the names out, or change them"
        ) from error


async def _create(
    executor: Executor, create: Callable[[], Coroutine[Any, Any, ExecutorValue]], is_quick: bool
) -> ExecutorValue:
    """Creates something; in an executor of ours on a thread if it may take long."""
    if is_quick or not isinstance(executor, VerbExecutor) or executor.waits_to_create:
        return await create()
    return await off_loop(lambda: run_at_once(create()))


async def written(executor: object, payload: object, type_spec: Type, write: Callable[[object, Type], _T]) -> _T:
    """Returns what `write` makes of a payload of an executor's and its type: on a thread if that may take long."""
    if is_quick(payload, type_spec):
        return write(payload, type_spec)
    if isinstance(executor, VerbExecutor) and contains_sequence(type_spec):
        # Streams run user code on its own threads.
        return await executor.finish(lambda: write(payload, type_spec), type_spec)
    return await off_loop(lambda: write(payload, type_spec))


def prepared(executor: Executor, computation: ConcreteComputation) -> Run:
    """Returns a function that runs a whole computation in an executor of any origin; see `VerbExecutor.prepared`."""
    if isinstance(executor, VerbExecutor):
        return executor.prepared(computation)
    return functools.partial(_run_by_verbs, executor, computation)


async def _run_by_verbs(executor: Executor, computation: ConcreteComputation, payload: object) -> object:
    parameter = computation.type_signature.parameter
    function = await create_computation(executor, computation.to_proto())
    argument = None if parameter is None else await create_known(executor, payload, parameter)
    return await pull(await create_call(executor, function, argument))


def known_payload(value: ExecutorValue) -> tuple[object, Type] | None:
    """Returns payload and type of a value that is known without running anything; `None` for any other."""
    return (value.payload, value.type_signature) if isinstance(value, KnownValue) else None


def phases_in(executor: Executor) -> PhaseRunner:
    """Returns the runner of client phases of a stack.

    Raises:
      UnsupportedIntrinsicError: If nothing does.
    """
    found = phases_of(executor)
    if found is None:
        raise UnsupportedIntrinsicError(
            f"Expected a stack that runs client phases, found {executor!r}; send values and calls one by one"
        )
    return found


class SharedComputation:
    """The computing of one value, shared by all calls that wait for it.

    When the last of them has gone away it is cancelled; one that is only to ask again soon leaves it running for a
    while.

    Args:
      value: The value.
      grace_seconds: How long it continues when no call waits for it.
      progress: Counts its work; by default counts of its own.

    Attributes:
      progress: Counts its work.
    """

    def __init__(self, value: ExecutorValue, grace_seconds: float, progress: ProgressCounts | None = None) -> None:
        self.progress = progress or ObservedCounts()
        self._task = contextvars.copy_context().run(self._begin, value)
        self._task.add_done_callback(consume_exception)
        self._grace = grace_seconds
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._was_cancelled = False

    def _begin(self, value: ExecutorValue) -> "asyncio.Future[object]":
        if current_scope().progress is not self.progress:
            change_scope(progress=self.progress)
        return asyncio.ensure_future(pull(value))

    @property
    def was_cancelled(self) -> bool:
        """Whether it ends without an outcome, or has: nothing to join in."""
        return self._was_cancelled or self._task.cancelled()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end, at most so many seconds; returns whether it has ended."""
        with self.awaited() as task:
            await asyncio.wait([task], timeout=seconds)
            return task.done()

    @contextlib.contextmanager
    def awaited(self) -> Generator["asyncio.Future[object]", None, None]:
        """Counts a call that waits in the block for what this yields; one that is cancelled there has gone away."""
        self._waiting += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        cancelled = True
        try:
            yield self._task
            cancelled = False
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
