"""Defines the execution contexts, which the language invokes when a computation is called.

They derive from the language's `SyncContext` and `AsyncContext`, not from its execution contexts, which close a shared
executor under concurrent callers and retry without limit. One context serves any number of threads.
"""

import asyncio
import contextlib
import inspect
import weakref
from bdb import BdbQuit
from typing import cast

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
from fedstack.executors.concurrency.coroutines import SyncDriver
from fedstack.foundations.number_checks import check_bool
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.foundations.value_text import describe
from fedstack.transport.peers.retry import RetryPolicy


class SyncExecutionContext(InForceInBlocks, SyncContext):
    """Runs a computation when it is called, and returns its result.

    It works in a plain script, under a running event loop (a notebook) and from several threads at once. Leaf work runs
    on the caller's thread as far as one thread suffices.

    Args:
      factory: Makes the executors.
      retry_policy: What to do about retryable errors; five attempts by default.
      progress: True to show how many clients are done, or a function that shows it.
      debug: Whether to keep everything on the caller's thread, so that a debugger can step into leaf functions.

    Raises:
      InvalidValueError: If an argument is of the wrong kind.

    In a `with` or `async with` block the context is in force in the block's thread. Blocks may be nested and in several
    threads; the end of the last one closes the context. `use_context` puts it in force without closing it.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        *,
        retry_policy: RetryPolicy | None = None,
        progress: bool | Progress | None = False,
        debug: bool = False,
    ) -> None:
        super().__init__()
        debug = check_bool("debug", debug)
        self._invoker = Invoker(
            _checked_factory(factory),
            _checked_policy(retry_policy),
            _chosen_progress(progress, debug),
            _installing(self),
        )
        self._debug = debug
        self._driver = SyncDriver(allow_loop=not debug)
        self._debugger: Environment = contextlib.nullcontext
        if debug:
            from fedstack.contexts.debugging import hiding_frames  # and Python's debugger with it

            self._debugger = hiding_frames

    @property
    def executor_factory(self) -> ExecutorFactory:
        """The factory of this context's executors."""
        return self._invoker.factory

    def invoke(self, comp: object, arg: object) -> object:
        """Runs a computation and returns its result in the containers of its annotated type."""
        __tracebackhide__ = True
        try:
            with self._debugger():
                return self._driver.run(self._invoker.invoke(comp, arg), inline=True)
        except FedstackError as error:
            raise _for_the_caller(error, self._debug) from error.__cause__
        except (KeyboardInterrupt, BdbQuit) as error:
            raise without_own_frames(error) from error.__cause__

    def close(self) -> None:
        """Closes the executors and ends the context's threads. Idempotent.

        It does not wait: running calls complete, and their executors are closed then.
        """
        self._closed = True
        self._invoker.close()
        self._driver.close()

    def __repr__(self) -> str:
        return f"<SyncExecutionContext of {self._invoker.factory!r}>"


class AsyncExecutionContext(InForceInBlocks, AsyncContext):
    """Runs a computation when the coroutine that its call returns is awaited. Invocations overlap.

    Within a leaf function, the call of a computation returns its result, as in a sync context.

    Args:
      factory: Makes the executors.
      retry_policy: What to do about retryable errors; five attempts by default.
      progress: True to show how many clients are done, or a function that shows it.

    As a context manager it does what a `SyncExecutionContext` does.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        *,
        retry_policy: RetryPolicy | None = None,
        progress: bool | Progress | None = False,
    ) -> None:
        super().__init__()
        self._inside_leaves = SyncExecutionContext(factory, retry_policy=retry_policy)
        self._invoker = Invoker(
            factory, _checked_policy(retry_policy), _chosen_progress(progress), _installing(self._inside_leaves)
        )

    @property
    def executor_factory(self) -> ExecutorFactory:
        """The factory of this context's executors."""
        return self._invoker.factory

    async def invoke(self, comp: object, arg: object) -> object:
        """Runs a computation and returns its result in the containers of its annotated type."""
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
        """Closes the executors. Idempotent.

        It does not wait: running calls complete, and their executors are closed then.
        """
        self._closed = True
        self._inside_leaves.close()
        self._invoker.close()

    def __repr__(self) -> str:
        return f"<AsyncExecutionContext of {self._invoker.factory!r}>"


def _for_the_caller(error: FedstackError, debug: bool) -> FedstackError:
    """Returns an error without this package's frames.

    It is a function because the frame of `invoke` would reference the cause, whose frames lead back to that frame.
    """
    cause = without_own_frames(error).__cause__
    # With these a debugger opens where the user's function raised.
    return error.with_traceback(cause.__traceback__ if debug and cause is not None else None)


def _checked_factory(factory: object) -> ExecutorFactory:
    # Another package's factory may have the methods without deriving from the language's class.
    if not callable(getattr(factory, "create_executor", None)):
        advice = "give" if not inspect.isfunction(factory) else "call it:"
        raise InvalidValueError(
            f"Expected an executor factory, found {describe(factory)}; {advice} fedstack.local_executor_factory(), "
            "for example"
        )
    return cast(ExecutorFactory, factory)


def _checked_policy(policy: object) -> RetryPolicy:
    if policy is None:
        return RetryPolicy()
    if not isinstance(policy, RetryPolicy):
        raise InvalidValueError(
            f"Expected retry_policy as a fedstack.RetryPolicy, found {describe(policy)}; give "
            "fedstack.RetryPolicy(attempts=3), for example"
        )
    return policy


def _chosen_progress(progress: bool | Progress | None, debug: bool = False) -> Progress | None:
    if progress is True:
        return None if debug else show_progress  # a bar would draw over the prompt of a debugger
    if progress is False or progress is None:
        return None
    if not callable(cast(object, progress)):
        raise InvalidValueError(
            "Expected progress to be True, False, or a function from a computation to a context manager of the counts "
            f"of its clients, found {describe(progress)}"
        )
    return progress


def _installing(context: SyncContext) -> Environment:
    """Returns the function that puts `context` in force for leaf functions.

    It references the context weakly: event loops keep the context variables of ended calls until their timers expire.
    """
    found = weakref.ref(context)

    def install() -> contextlib.AbstractContextManager[object]:
        context = found()
        return contextlib.nullcontext() if context is None else get_context_stack().install(context)

    return install
