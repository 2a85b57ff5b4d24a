"""Puts execution contexts in force within `with` blocks.

The language keeps a stack of contexts per thread, runs a computation in the newest context of the caller's thread, and
always removes the newest context. Blocks of different contexts must therefore end in reverse order. Because tasks of
one event loop share a thread, their blocks can end in a different order. In that case, this module raises a
`ContextError`.
"""

import contextlib
import inspect
import threading
from types import TracebackType
from typing import TypeVar, cast

import attrs

from fedstack.computations.types.language import AsyncContext, SyncContext, get_context_stack
from fedstack.computations.types.language_mistakes import explain_missing_contexts, note_fix
from fedstack.computations.types.uncaught_errors import explain_uncaught_errors
from fedstack.contexts.invocation import closed_error
from fedstack.errors import ClosedError, ContextError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.value_text import describe

_C = TypeVar("_C", bound="SyncContext | AsyncContext")


@attrs.define(eq=False)
class _InForce:
    """A block in which a context is in force.

    Attributes:
      context: The context.
      installed: The context manager whose exit removes the context from the language's stack.
      is_over: Whether the block has ended. The context is removed as soon as it is the newest in the language's stack.
    """

    context: SyncContext | AsyncContext
    installed: contextlib.AbstractContextManager[object]
    is_over: bool = False


class _Thread(threading.local):
    """The blocks of a thread, outermost first."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[_InForce] = []


_thread = _Thread()


def _enter(context: SyncContext | AsyncContext) -> None:
    installed = get_context_stack().install(context)
    installed.__enter__()
    _thread.blocks.append(_InForce(context, installed))


def _leave(context: SyncContext | AsyncContext, error: BaseException | None, is_entered: bool) -> None:
    """Ends the newest block of a context in this thread.

    Args:
      context: The context.
      error: The error that ended the block, if any. It takes precedence over a `ContextError`.
      is_entered: Whether a block of the context is open in any thread.

    Raises:
      ContextError: If a newer block of another context is still open, the block began in another thread, or no block
        has begun.
    """
    if error is not None:
        note_fix(error)  # a computation may be built in the block
    blocks, newest = _thread.blocks, get_context_stack().current
    block = next((block for block in reversed(blocks) if block.context is context and not block.is_over), None)
    if block is not None:
        in_order = block is blocks[-1] and newest is context
        block.is_over = True
        # A context below the context of a newer block stays in the stack until the newer block has ended.
        while blocks and blocks[-1].is_over and get_context_stack().current is blocks[-1].context:
            blocks.pop().installed.__exit__(None, None, None)
        if in_order:
            return
    if error is not None:
        return
    where = f"in the thread {threading.current_thread().name!r}"
    if block is None and not is_entered:
        raise ContextError(
            f"{context!r} has no open block that could end {where}; use the context in a `with` statement"
        )
    if block is None:
        raise ContextError(
            f"A block of {context!r} ended {where}, but began in a different thread; end each block in the thread in "
            "which it began"
        )
    raise ContextError(
        f"A block of {context!r} ended {where} before a newer block of {newest!r}, in whose context "
        "computations ran in the meantime; the tasks of an event loop share a thread, so use one context per event "
        "loop, or create the coroutine in a block of fedstack.use_context that contains no `await`"
    )


class InForceInBlocks(ClosesOnExit):
    """The base class of fedstack's contexts. Within a `with` block, the context is in force in the block's thread.

    Attributes:
      closes_executors: Whether closing the context closes its executors. Otherwise, another context owns them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.closes_executors = True
        explain_missing_contexts()
        explain_uncaught_errors()  # also if a hook of the user has come since the import

    def _closed_error(self) -> ClosedError:
        return closed_error()

    def _entered(self) -> None:
        _enter(cast("SyncContext | AsyncContext", self))

    def _left(self, error: BaseException | None) -> None:
        _leave(cast("SyncContext | AsyncContext", self), error, self.is_entered)

    def _was_last(self) -> bool:
        # Ending a block that was never entered is a mistake, and must not close the context for its other users.
        return self.is_entered and super()._was_last()


class _UsedContext(contextlib.AbstractContextManager[_C], contextlib.ContextDecorator):
    """A reusable and reentrant context manager that puts a context in force within its blocks, in any thread."""

    def __init__(self, context: _C) -> None:
        self._context = context
        self._blocks: list[None] = []  # an entry for each open block

    def __enter__(self) -> _C:
        _enter(self._context)
        self._blocks.append(None)
        return self._context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_entered = bool(self._blocks)
        if is_entered:
            self._blocks.pop()
        _leave(self._context, error, is_entered)


def use_context(context: _C) -> _UsedContext[_C]:
    """Returns a context manager that puts `context` in force within its block, in this thread, without closing it.

    The language keeps contexts per thread, so use this function in every thread that calls computations. Tasks of one
    event loop share a thread, so they should share a context. The returned context manager can be used for any number
    of blocks, and as a decorator.

    >>> import fedstack
    >>> with fedstack.use_context(fedstack.create_sync_local_execution_context()):
    ...     pass

    Args:
      context: An execution context of fedstack, or any other context of the language.

    Raises:
      TypeError: If `context` is not a context.
      ContextError: If a newer block of another context is still open when this block ends.
    """
    if not isinstance(cast(object, context), (SyncContext, AsyncContext)):
        advice = "for example, pass" if not inspect.isfunction(context) else "call the function, for example"
        raise TypeError(
            f"Expected an execution context, found {describe(context)}; {advice} "
            "fedstack.create_sync_local_execution_context()"
        )
    return _UsedContext(context)
