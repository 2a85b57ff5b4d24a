"""Defines the execution contexts, which the language invokes when a computation is called.

The contexts derive from the language's `SyncContext` and `AsyncContext`. They do not derive from the language's
execution contexts, which close a shared executor while other callers use it, and retry without limit. One context
serves any number of threads.
"""

import asyncio
import contextlib
import inspect
import weakref
from bdb import BdbQuit
from typing import TYPE_CHECKING, TypedDict, cast

import attrs

from fedstack.computations.leaves.work_scope import Environment
from fedstack.computations.types.language import (
    AsyncContext,
    ExecutorFactory,
    SyncContext,
    get_context_stack,
)
from fedstack.contexts.in_force import InForceInBlocks
from fedstack.contexts.invocation import Invoker
from fedstack.contexts.progress_display import Progress, show_progress
from fedstack.errors import FedstackError, InvalidValueError
from fedstack.executors.concurrency.sync_driver import SyncDriver
from fedstack.executors.survivors.client_failures import ClientFailures
from fedstack.foundations.number_checks import check_bool
from fedstack.foundations.public_names import takes_options
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.foundations.value_text import describe
from fedstack.transport.peers.retry import RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 does not have it


class CallOptions(TypedDict, total=False):
    """The options of a context that can differ between contexts over the same executors.

    Attributes:
      retry_policy: How to retry after retryable errors.
      client_failures: How many clients may fail; see `ClientFailures`. With `None`, an error of a client ends the call.
      progress: True to show how many clients are done, or a function that displays the progress.
    """

    retry_policy: RetryPolicy | None
    client_failures: ClientFailures | None
    progress: bool | Progress | None


class SyncExecutionContext(InForceInBlocks, SyncContext):
    """An execution context that runs a computation when it is called, and returns the result.

    The context can be used in a plain script, under a running event loop (as in a notebook), and from several threads
    at once. Leaf functions run on the caller's thread where one thread is enough.

    Within a `with` or `async with` block, the context is in force in the block's thread. Blocks can be nested, and can
    be open in several threads at once. The context is closed when the last block ends. To put the context in force
    without closing it, use `use_context`.

    Args:
      factory: The factory that creates the executors.
      retry_policy: How to retry after retryable errors. By default, five attempts are made.
      progress: True to show how many clients are done, or a function that displays the progress.
      debug: Whether to keep all work on the caller's thread, so that a debugger can step into leaf functions.
      client_failures: How many clients may fail; see `ClientFailures`. By default, an error of a client ends the call.

    Raises:
      InvalidValueError: If an argument has the wrong type.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        *,
        retry_policy: RetryPolicy | None = None,
        progress: bool | Progress | None = False,
        debug: bool = False,
        client_failures: ClientFailures | None = None,
    ) -> None:
        super().__init__()
        debug = check_bool("debug", debug)
        self._invoker = Invoker(
            _checked_factory(factory),
            _checked_policy(retry_policy),
            _chosen_progress(progress, debug),
            _installing(self),
            _checked_failures(client_failures, debug),
        )
        self._debug = debug
        self._options: CallOptions = {
            "retry_policy": retry_policy,
            "client_failures": client_failures,
            "progress": progress,
        }
        self._driver = SyncDriver(allow_loop=not debug)
        self._debugger: Environment = contextlib.nullcontext
        if debug:
            from fedstack.contexts.debugging import debugging  # imports Python's debugger, too

            self._debugger = debugging

    @property
    def executor_factory(self) -> ExecutorFactory:
        """The factory that creates this context's executors."""
        return self._invoker.factory

    @takes_options(CallOptions, retry_policy="unchanged", client_failures="unchanged", progress="unchanged")
    def with_options(self, **options: "Unpack[CallOptions]") -> "SyncExecutionContext":
        """Returns a context with other options over the same executors. Options that are not given stay the same.

        The executors are closed together with this context. Closing the returned context leaves them open.

        Args:
          **options: See `CallOptions`.

        Raises:
          InvalidValueError: If the value of an option is invalid.
          TypeError: If an option does not exist.
        """
        chosen: CallOptions = {**self._options, **options}
        context = SyncExecutionContext(self.executor_factory, debug=self._debug, **chosen)
        context.closes_executors = False
        return context

    def invoke(self, comp: object, arg: object) -> object:
        """Runs a computation and returns its result in the containers that the result's type specifies."""
        __tracebackhide__ = True
        try:
            with self._debugger():
                return self._driver.run(self._invoker.invoke(comp, arg), inline=True)
        except FedstackError as error:
            raise _for_the_caller(error, self._debug) from error.__cause__
        except (KeyboardInterrupt, BdbQuit) as error:
            raise without_own_frames(error) from error.__cause__

    def close(self) -> None:
        """Closes the executors, unless another context owns them, and stops the context's threads. Idempotent.

        The method does not wait for running calls. They run to completion, and their executors are closed afterwards.
        """
        self._closed = True
        self._invoker.close(closes_factory=self.closes_executors)
        self._driver.close()

    def __repr__(self) -> str:
        return f"<SyncExecutionContext of {self._invoker.factory!r}>"


class AsyncExecutionContext(InForceInBlocks, AsyncContext):
    """An execution context in which calling a computation returns a coroutine that runs the computation.

    Any number of calls can run concurrently. Within a leaf function, calling a computation returns the result directly,
    as in a sync context. As a context manager, an async context behaves like a `SyncExecutionContext`.

    Args:
      factory: The factory that creates the executors.
      retry_policy: How to retry after retryable errors. By default, five attempts are made.
      progress: True to show how many clients are done, or a function that displays the progress.
      client_failures: How many clients may fail; see `ClientFailures`. By default, an error of a client ends the call.

    Raises:
      InvalidValueError: If an argument has the wrong type.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        *,
        retry_policy: RetryPolicy | None = None,
        progress: bool | Progress | None = False,
        client_failures: ClientFailures | None = None,
    ) -> None:
        super().__init__()
        failures = _checked_failures(client_failures)
        self._inside_leaves = SyncExecutionContext(factory, retry_policy=retry_policy, client_failures=failures)
        inside = _installing(self._inside_leaves)
        self._invoker = Invoker(factory, _checked_policy(retry_policy), _chosen_progress(progress), inside, failures)
        self._options: CallOptions = {
            "retry_policy": retry_policy,
            "client_failures": client_failures,
            "progress": progress,
        }

    @property
    def executor_factory(self) -> ExecutorFactory:
        """The factory that creates this context's executors."""
        return self._invoker.factory

    @takes_options(CallOptions, retry_policy="unchanged", client_failures="unchanged", progress="unchanged")
    def with_options(self, **options: "Unpack[CallOptions]") -> "AsyncExecutionContext":
        """Returns a context with other options over the same executors. Options that are not given stay the same.

        The executors are closed together with this context. Closing the returned context leaves them open.

        Args:
          **options: See `CallOptions`.

        Raises:
          InvalidValueError: If the value of an option is invalid.
          TypeError: If an option does not exist.
        """
        chosen: CallOptions = {**self._options, **options}
        context = AsyncExecutionContext(self.executor_factory, **chosen)
        context.closes_executors = context._inside_leaves.closes_executors = False
        return context

    async def invoke(self, comp: object, arg: object) -> object:
        """Runs a computation and returns its result in the containers that the result's type specifies."""
        if inspect.isawaitable(arg):
            arg = await arg
        __tracebackhide__ = True
        try:
            return await self._invoker.invoke(comp, arg)
        except FedstackError as error:
            raise without_own_frames(error).with_traceback(None) from error.__cause__
        except asyncio.CancelledError as error:
            raise without_own_frames(error).with_traceback(None) from error.__cause__

    def close(self) -> None:
        """Closes the executors, unless another context owns them. Idempotent.

        The method does not wait for running calls. They run to completion, and their executors are closed afterwards.
        """
        self._closed = True
        self._inside_leaves.close()
        self._invoker.close(closes_factory=self.closes_executors)

    def __repr__(self) -> str:
        return f"<AsyncExecutionContext of {self._invoker.factory!r}>"


def _for_the_caller(error: FedstackError, debug: bool) -> FedstackError:
    """Returns `error` without this package's frames.

    This is a separate function because a local variable in `invoke` would create a reference cycle: the frame of
    `invoke` would reference the cause, whose frames lead back to the frame of `invoke`.
    """
    cause = without_own_frames(error).__cause__
    # With the traceback of the cause, a debugger opens at the line where the user's function raised.
    return error.with_traceback(cause.__traceback__ if debug and cause is not None else None)


def _checked_factory(factory: object) -> ExecutorFactory:
    # A factory of another package may have the methods without deriving from the language's class.
    if not callable(getattr(factory, "create_executor", None)):
        advice = "for example, pass" if not inspect.isfunction(factory) else "call the function, for example"
        raise InvalidValueError(
            f"Expected an executor factory, found {describe(factory)}; {advice} fedstack.local_executor_factory()"
        )
    return cast(ExecutorFactory, factory)


def _checked_policy(policy: object) -> RetryPolicy:
    if policy is None:
        return RetryPolicy()
    if not isinstance(policy, RetryPolicy):
        raise InvalidValueError(
            f"Expected retry_policy to be a fedstack.RetryPolicy, found {describe(policy)}; for example, pass "
            "fedstack.RetryPolicy(attempts=3)"
        )
    return policy


def _checked_failures(policy: object, debug: bool = False) -> ClientFailures | None:
    if policy is not None and not isinstance(policy, ClientFailures):
        raise InvalidValueError(
            f"Expected client_failures to be a fedstack.ClientFailures, found {describe(policy)}; for example, pass "
            "fedstack.ClientFailures(tolerate=0.1)"
        )
    # A debugger needs the function on the caller's thread, and as much time as the user.
    return attrs.evolve(policy, client_seconds=None) if debug and policy is not None else policy


def _chosen_progress(progress: bool | Progress | None, debug: bool = False) -> Progress | None:
    if progress is True:
        return None if debug else show_progress  # a progress bar would overwrite the debugger's prompt
    if progress is False or progress is None:
        return None
    if not callable(cast(object, progress)):
        raise InvalidValueError(
            "Expected progress to be True, False, or a function that accepts a computation and returns a context "
            f"manager of fedstack.contexts.ProgressCounts, found {describe(progress)}; for example, pass True"
        )
    return progress


def _installing(context: SyncContext) -> Environment:
    """Returns a function that puts `context` in force for leaf functions.

    The function references the context weakly, because an event loop keeps the context variables of completed calls
    until their timers expire.
    """
    found = weakref.ref(context)

    def install() -> contextlib.AbstractContextManager[object]:
        context = found()
        return contextlib.nullcontext() if context is None else get_context_stack().install(context)

    return install
