"""Creates and computes values in a session's executor; uses payloads directly in fedstack's own executors."""

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
# The maximum number of tensors, or of members of a struct, that are checked on the event loop.
_FEW_MEMBERS = 1000


async def create_known(executor: Executor, payload: object, type_spec: Type) -> ExecutorValue:
    """Creates a value from a payload that matches its type.

    Raises:
      CardinalityError: If the payload and the executor have different numbers of clients.
    """
    check_clients(payload, type_spec, known_clients_of(executor))
    if isinstance(executor, VerbExecutor):
        return await executor.create_known(payload, type_spec)
    return await executor.create_value(await off_loop(lambda: to_result(payload, type_spec)), type_spec)


async def create_computation(executor: Executor, computation: computation_pb2.Computation) -> ExecutorValue:
    """Creates a function, or the result of a computation without parameters."""
    return await _create(executor, lambda: executor.create_value(computation), plans.knows(computation))


async def create_call(executor: Executor, function: ExecutorValue, argument: ExecutorValue | None) -> ExecutorValue:
    """Creates the result of a function call. The argument's members are reordered to match the parameter."""
    leaves = count_leaves(function.type_signature) + (0 if argument is None else count_leaves(argument.type_signature))
    is_traced = not isinstance(function, FunctionValue) or plans.knows(function.computation)
    return await _create(executor, lambda: _called(executor, function, argument), is_traced and leaves <= _FEW_MEMBERS)


async def _called(executor: Executor, function: ExecutorValue, argument: ExecutorValue | None) -> ExecutorValue:
    declared = function.type_signature
    if argument is not None and isinstance(declared, FunctionType) and declared.parameter is not None:
        argument = await matched(executor, argument, declared.parameter)
    return await executor.create_call(function, argument)


async def matched(executor: Executor, value: ExecutorValue, wanted: Type) -> ExecutorValue:
    """Reorders the members of structs to match a type, by name if the value and the type have the same set of names.

    If the value or the type has no names, the members keep their order, because plain peers omit names. A value whose
    names differ from those of the type is returned unchanged, so that the caller can refuse it.
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
    """Combines values into a struct. An empty name stands for a member without a name.

    Raises:
      ResourceLimitError: If the struct has too many tensors or nested structs.
      InvalidValueError: If a name occurs twice or is reserved by the language.
    """
    # A struct may contain the previous struct twice, so sizes can double with each call. The size is therefore checked
    # on creation, before other code traverses the struct.
    types = [value.type_signature for _, value in members]
    check_sizes(limits, sum(map(count_leaves, types)), 1 + max(map(struct_depth, types), default=0))
    try:
        struct = Struct([(name or None, value) for name, value in members])
        return await _create(executor, lambda: executor.create_struct(struct), len(members) <= _FEW_MEMBERS)
    except FedstackError:
        raise
    except ValueError as error:
        raise InvalidValueError(
            f"The language does not allow the names of the struct's members: {error}; change or omit the names"
        ) from error


async def _create(
    executor: Executor, create: Callable[[], Coroutine[Any, Any, ExecutorValue]], is_quick: bool
) -> ExecutorValue:
    """Creates a value, on a thread if the creation may take long and the executor allows it."""
    if is_quick or not isinstance(executor, VerbExecutor) or executor.waits_to_create:
        return await create()
    return await off_loop(lambda: run_at_once(create()))


async def written(executor: object, payload: object, type_spec: Type, write: Callable[[object, Type], _T]) -> _T:
    """Returns the result of `write` for a payload and its type. Runs `write` on a thread if it may take long."""
    if is_quick(payload, type_spec):
        return write(payload, type_spec)
    if isinstance(executor, VerbExecutor) and contains_sequence(type_spec):
        # Reading a stream runs user code, which belongs on the executor's threads.
        return await executor.finish(lambda: write(payload, type_spec), type_spec)
    return await off_loop(lambda: write(payload, type_spec))


def prepared(executor: Executor, computation: ConcreteComputation) -> Run:
    """Returns a function that runs a whole computation in any kind of executor; see `VerbExecutor.prepared`."""
    if isinstance(executor, VerbExecutor):
        return executor.prepared(computation)
    return functools.partial(_run_by_verbs, executor, computation)


async def _run_by_verbs(executor: Executor, computation: ConcreteComputation, payload: object) -> object:
    parameter = computation.type_signature.parameter
    function = await create_computation(executor, computation.to_proto())
    argument = None if parameter is None else await create_known(executor, payload, parameter)
    return await pull(await create_call(executor, function, argument))


def known_payload(value: ExecutorValue) -> tuple[object, Type] | None:
    """Returns the payload and the type of a value that is known without computation, or `None` for other values."""
    return (value.payload, value.type_signature) if isinstance(value, KnownValue) else None


def phases_in(executor: Executor) -> PhaseRunner:
    """Returns the engine that runs client phases in a stack of executors.

    Raises:
      UnsupportedIntrinsicError: If the stack cannot run phases.
    """
    found = phases_of(executor)
    if found is None:
        raise UnsupportedIntrinsicError(
            f"Expected a stack of executors that runs client phases, found {executor!r}; send values and calls one by "
            "one"
        )
    return found


class SharedComputation:
    """The computation of a value, shared by all calls that wait for the value.

    The computation is cancelled when the last waiting call is cancelled. If the last call merely stops waiting, because
    its client will call again soon, the computation continues for `grace_seconds`.

    Args:
      value: The value to compute.
      grace_seconds: How long the computation continues while no call waits for it.
      progress: The counts to which the computation reports its progress; by default new counts.

    Attributes:
      progress: The counts of the computation's progress.
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
        """Whether the computation was cancelled, so that calls can no longer join it."""
        return self._was_cancelled or self._task.cancelled()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end of the computation, at most `seconds` seconds, and returns whether it has ended."""
        with self.awaited() as task:
            await asyncio.wait([task], timeout=seconds)
            return task.done()

    @contextlib.contextmanager
    def awaited(self) -> Generator["asyncio.Future[object]", None, None]:
        """Yields the task to wait for, and counts the caller as waiting within the block.

        A caller that is cancelled within the block no longer needs the value.
        """
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
        """Returns the payload, or raises the error of the computation."""
        return self._task.result()

    def _give_up(self) -> None:
        if not self._waiting:
            self.cancel()

    def cancel(self) -> None:
        """Cancels the computation."""
        if self._timer is not None:
            self._timer.cancel()
        self._was_cancelled = True
        self._task.cancel()
