"""Runs one call of a computation, from its argument to its result, on an executor leased from a factory."""

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

from fedstack.computations.leaves.work_scope import (
    Environment,
    begin_invocation,
    change_scope,
    current_scope,
    set_scope,
)
from fedstack.computations.plan.symbol_checks import check_takes_values
from fedstack.computations.types.language import (
    CLIENTS,
    ConcreteComputation,
    Executor,
    ExecutorFactory,
    ExecutorValue,
    FunctionType,
    PlacementLiteral,
    RetryableError,
    Struct,
    Type,
    struct_elements,
)
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.federated_values import count_clients, normalize_argument
from fedstack.contexts.absent_clients import split_absent
from fedstack.contexts.progress_display import GuardedProgress, Progress, ProgressObserver, name_of_computation
from fedstack.errors import (
    ClosedError,
    FedstackError,
    InvalidComputationError,
    InvalidValueError,
    LostWorkersError,
    NoWorkersError,
    RetryLimitError,
    WorkerUnavailableError,
)
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.concurrency.coroutines import need_event_loop, runs_inline, wait
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.executors.survivors.client_failures import ClientFailure, ClientFailures
from fedstack.executors.survivors.outcomes import Telling
from fedstack.executors.survivors.survivors import Survivors
from fedstack.foundations.traceback_filter import without_frames
from fedstack.foundations.value_text import describe
from fedstack.membership.ledger import InvocationLosses
from fedstack.observe.events import CallEnded, CallRetried, CallStarted, Span
from fedstack.observe.observers import observers
from fedstack.transport.peers.retry import RetryPolicy
from fedstack.transport.wire.connection_errors import listed

_logger = logging.getLogger(__name__)
_NORMALIZING_THREADS = 4
_MANY_VALUES = 1000
Cardinalities = dict[PlacementLiteral, int]


class ObservedCall:
    """A context manager that notifies observers when a call of a computation starts and when it ends.

    Args:
      computation: The computation.
      outer: The span in which the computation is called.

    Attributes:
      span: The span of the call.
      clients: The number of clients; 0 until the number is known.
    """

    def __init__(self, computation: ConcreteComputation, outer: Span) -> None:
        self.span = outer.new_call()
        self.clients = 0
        self._attempts = 0
        self._name = name_of_computation(computation)
        self._ids: dict[str, Any] = {"trace": self.span.trace, "call": self.span.call, "parent": outer.id}
        self._begin = time.perf_counter()

    def __enter__(self) -> "ObservedCall":
        observers.tell(CallStarted(**self._ids, computation=self._name))
        return self

    def retried(self, pause: float, error: Exception) -> None:
        """Notifies observers that an attempt has failed, and that another attempt follows after `pause` seconds."""
        self._attempts += 1
        name = type(error).__name__
        observers.tell(CallRetried(**self.span.ids, attempt=self._attempts, pause=pause, error=name))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        observers.tell(
            CallEnded(
                **self._ids,
                computation=self._name,
                clients=self.clients,
                seconds=time.perf_counter() - self._begin,
                error="" if kind is None else kind.__name__,
            )
        )


class Invoker:
    """Invokes computations on executors from a factory. Any number of computations can run concurrently.

    Args:
      factory: The factory that creates the executors.
      retry_policy: How to retry after retryable errors.
      progress: A function that returns the context manager to show the progress of an invocation; `None` to show no
        progress.
      environment: A function that returns a context manager to enter around leaf work; see `WorkScope`.
      client_failures: Which failures of clients a call tolerates; `None` for none.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        retry_policy: RetryPolicy,
        progress: Progress | None = None,
        environment: Environment = contextlib.nullcontext,
        client_failures: ClientFailures | None = None,
    ) -> None:
        self.factory = factory
        self._client_failures = client_failures
        self._calls = itertools.count()
        self._environment = environment
        self._retry_policy = retry_policy
        self._observer = None if progress is None else ProgressObserver(progress)
        self._threads = LeafThreads(_NORMALIZING_THREADS)
        self._closed = False

    async def invoke(self, comp: object, arg: object) -> object:
        """Runs a computation and returns its result in the containers of its annotated type.

        Raises:
          ClosedError: If the invoker is closed.
          InvalidComputationError: If `comp` is not a computation.
          TypeMismatchError: If the argument does not match the parameter's type.
          RetryLimitError: If every attempt failed with a retryable error.
          NoWorkersError: If the last attempt found no worker at all.
        """
        self._check_open()
        if not isinstance(comp, ConcreteComputation):
            raise InvalidComputationError(
                f"Expected a computation to invoke, found {describe(comp)}; decorate the function as a computation"
            )
        if not observers.present:
            return await self._invoke(comp, arg, None)
        with ObservedCall(comp, current_scope().span) as call:
            return await self._invoke(comp, arg, call)

    async def _invoke(self, comp: ConcreteComputation, arg: object, call: ObservedCall | None) -> object:
        signature = comp.type_signature
        losses = InvocationLosses(self._retry_policy, self._check_open)
        outer = begin_invocation(self._environment, losses, None if call is None else call.span)
        if call is not None and current_scope().of(Telling) is None:
            set_scope(current_scope().adding(Telling()))
        # Calls that functions of clients make are not recorded, so they are not replayed.
        number = next(self._calls) if outer.losses is None else None
        # They are part of the client's work, and know no policy, as on workers. A context that they create has its own.
        is_inside = outer.losses is not None and outer.environment == self._environment
        policy = None if is_inside else self._client_failures
        try:
            payload: object = None
            cardinalities: Cardinalities = {}
            survivors: Callable[[], Survivors] | None = None
            absent: dict[int, ClientFailure] = {}
            if signature.parameter is not None:
                check_takes_values(signature)
                if policy is not None:
                    arg, absent = split_absent(arg, signature.parameter)
                payload = await self._normalized(arg, signature.parameter)
                clients = count_clients(payload, signature.parameter)
                if clients is not None:
                    cardinalities[CLIENTS] = clients
                    if call is not None:
                        call.clients = clients
            if policy is not None:
                survivors = functools.partial(Survivors, policy, absent, number)
            if self._observer is None:
                progress = None if call is None else GuardedProgress(call.span)
                return await self._retried(comp, signature, payload, survivors, cardinalities, progress, losses, call)
            with self._observer.shown(comp, current_scope().span) as progress:
                return await self._retried(comp, signature, payload, survivors, cardinalities, progress, losses, call)
        finally:
            set_scope(outer)

    async def _normalized(self, arg: object, parameter: Type) -> object:
        """Returns the payload of `arg`. An argument with many values is checked on a thread, not on the event loop."""
        if runs_inline() or not _has_many(arg):
            return normalize_argument(arg, parameter)
        return await self._threads.run(lambda: normalize_argument(arg, parameter))

    async def _retried(
        self,
        comp: ConcreteComputation,
        signature: FunctionType,
        payload: object,
        survivors: Callable[[], Survivors] | None,
        cardinalities: Cardinalities,
        progress: GuardedProgress | None,
        losses: InvocationLosses,
        call: ObservedCall | None,
    ) -> object:
        attempts, logged = 0, ""
        while True:
            if progress is not None:
                change_scope(progress=progress)
            if survivors is not None:
                set_scope(current_scope().adding(survivors()))  # each attempt begins with all clients
            try:
                with _LentExecutor(self.factory, cardinalities) as executor:
                    return await _run(executor, comp, signature, payload)
            except RetryableError as error:
                attempts += 1
                is_final = losses.is_over or (isinstance(error, NoWorkersError) and error.is_final)
                pause = None if is_final else losses.pause(attempts)
                if isinstance(error, FedstackError):
                    losses.causes.update(error.causes)
                if pause is None:
                    if isinstance(error, NoWorkersError):
                        error.args = (f"{error}{losses.told()}",)
                        raise  # the message of this error is complete
                    raise self._given_up(error, losses) from error
                # The error is logged as text, because a stored log record must not keep the error's frames, and the
                # values in these frames, alive.
                found = f"{type(error).__name__}: {error}"
                if found != logged:
                    # What each worker lacks has been logged while the call waited for it.
                    shown = found.partition(":\n")[0] if isinstance(error, NoWorkersError) else found
                    _logger.warning("Retrying a computation in %.2f s after %s", pause, shown)
                else:
                    _logger.info("Retrying a computation in %.2f s after the same error", pause)
                logged = found
                if call is not None:
                    call.retried(pause, error)
                without_frames(error)
            await wait(pause)
            self._check_open()
            progress = None if progress is None else progress.next_attempt()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()

    def _given_up(self, error: RetryableError, losses: InvocationLosses) -> FedstackError:
        limits, causes = self._retry_policy.limits, losses.causes
        if not (isinstance(error, WorkerUnavailableError) and causes):
            kind = LostWorkersError if isinstance(error, WorkerUnavailableError) else RetryLimitError
            return kind(
                f"The computation failed with a retryable error in every attempt (limit: {limits}); the last error was "
                f"{type(error).__name__}: {error}"
            )
        lost = LostWorkersError(
            f"The computation lost workers in every attempt (limit: {limits}); "
            f"{error.advice}:{listed(causes)}{losses.told()}"
        )
        lost.causes = causes
        return lost

    def close(self, *, closes_factory: bool) -> None:
        """Closes the factory, if it has a `close` method. A fedstack factory waits for running invocations.

        Args:
          closes_factory: Whether to close the factory.
        """
        self._closed = True
        self._threads.close()
        close = getattr(self.factory, "close", None)
        if callable(close) and closes_factory:
            close()


class _LentExecutor:
    """Leases an executor from a factory for a block, and adds the executor's stack to errors raised in the block.

    This is a class rather than a `contextlib.contextmanager` function, which would add 1 µs to each call.
    """

    __slots__ = ("_cardinalities", "_executor", "_factory")

    def __init__(self, factory: ExecutorFactory, cardinalities: Cardinalities) -> None:
        self._factory = factory
        self._cardinalities = cardinalities

    def __enter__(self) -> Executor:
        if isinstance(self._factory, ResourceManagingExecutorFactory):
            self._executor = self._factory.lease(self._cardinalities)
            return self._executor
        try:
            self._executor = self._factory.create_executor({**self._cardinalities})
        except Exception:
            self._factory.clean_up_executor({**self._cardinalities})
            raise
        return self._executor

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FedstackError):
            tell_path(error, self._executor)
        if isinstance(self._factory, ResourceManagingExecutorFactory):
            self._factory.release(self._executor, failed=error is not None)
        elif isinstance(error, Exception):
            # Factories of other packages have no leases. The language's own contexts clean up in the same way.
            self._factory.clean_up_executor({**self._cardinalities})


def closed_error() -> ClosedError:
    """Returns the error to raise when a closed context is used."""
    return ClosedError("The context is closed; create a new context")


def _has_many(arg: object) -> bool:
    """Returns whether checking `arg` may block an event loop for a noticeable time."""
    if isinstance(arg, (list, tuple)):
        members = cast("Sequence[object]", arg)
        return len(members) >= _MANY_VALUES or any(map(_has_many, members[:8]))
    if isinstance(arg, Mapping):
        return any(map(_has_many, cast("Mapping[object, object]", arg).values()))
    return isinstance(arg, Struct) and any(_has_many(member) for _, member in struct_elements(arg))


async def _run(executor: Executor, comp: ConcreteComputation, signature: FunctionType, payload: object) -> object:
    survivors = current_scope().of(Survivors)
    if not isinstance(executor, VerbExecutor):
        if survivors is not None:
            raise InvalidValueError(
                f"Expected an executor that supports client_failures, found {executor!r}, which runs one verb at a "
                "time; use a factory of fedstack, such as local_executor_factory"
            )
        return await _run_foreign(executor, comp, signature, payload)
    if not executor.drives_inline:
        await need_event_loop()
    result = await executor.prepared(comp)(payload)
    if survivors is not None:
        survivors.check_end()
    absent = {} if survivors is None else survivors.absent
    return await executor.finish(lambda: to_result(result, signature.result, absent), signature.result)


async def _run_foreign(
    executor: Executor, comp: ConcreteComputation, signature: FunctionType, payload: object
) -> object:
    """Runs a computation on an executor of another package, through the four methods of the language's `Executor`."""
    await need_event_loop()
    argument: ExecutorValue | None = None
    if signature.parameter is not None:
        argument = await executor.create_value(to_result(payload, signature.parameter), signature.parameter)
    function = await executor.create_value(comp, signature)
    result = await (await executor.create_call(function, argument)).compute()
    return to_result(normalize_argument(result, signature.result, "result"), signature.result)


@contextlib.contextmanager
def telling_path(executor: Executor) -> Generator[None, None, None]:
    """Adds an executor's stack to errors raised in the block; see `tell_path`."""
    try:
        yield
    except FedstackError as error:
        tell_path(error, executor)
        raise


def tell_path(error: FedstackError, executor: Executor) -> None:
    """Adds the class names of an executor's stack to `error`, outermost first, unless a worker has added names."""
    if error.executor_path:
        return
    path: list[str] = []
    inner: object = executor
    while isinstance(inner, Executor):
        path.append(type(inner).__name__)
        inner = getattr(inner, "target", None) or getattr(inner, "server", None)
    error.executor_path = tuple(path)
