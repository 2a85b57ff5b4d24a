"""Puts contexts in force for blocks: the language runs a computation in the newest context of the caller's thread.

The language keeps a stack of contexts per thread, and always removes the newest. So blocks of different contexts must
end in reverse order, which blocks in tasks of one event loop, and so of one thread, need not do.
"""

import contextlib
import inspect
import threading
from types import TracebackType
from typing import TypeVar, cast

import attrs

from fedstack.computations.types.language import AsyncContext, SyncContext, get_context_stack
from fedstack.computations.types.language_mistakes import explain_missing_contexts, note_fix
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
      installed: Removes the context from the language's stack.
      is_over: Whether the block has ended. The context is removed as soon as it is the newest.
    """

    context: SyncContext | AsyncContext
    installed: contextlib.AbstractContextManager[object]
    is_over: bool = False


class _Thread(threading.local):
    """The blocks of a thread, the outermost first."""

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
      error: The error that ended the block, which matters more than the order of blocks.
      is_entered: Whether there is an open block in any thread.

    Raises:
      ContextError: If a newer block of another context has not ended, the block began in another thread, or none
        has begun.
    """
    if error is not None:
        note_fix(error)  # a computation may be built in the block
    blocks, newest = _thread.blocks, get_context_stack().current
    block = next((block for block in reversed(blocks) if block.context is context and not block.is_over), None)
    if block is not None:
        in_order = block is blocks[-1] and newest is context
        block.is_over = True
        # A context below that of a newer block stays until that has ended.
        while blocks and blocks[-1].is_over and get_context_stack().current is blocks[-1].context:
            blocks.pop().installed.__exit__(None, None, None)
        if in_order:
            return
    if error is not None:
        return
    where = f"in the thread {threading.current_thread().name!r}"
    if block is None and not is_entered:
        raise ContextError(
            f"The end of a block of {context!r} was called {where}, and none had begun; use it in a `with` block"
        )
    if block is None:
        raise ContextError(f"A block of {context!r} ended {where}, where it did not begin; end it where it began")
    raise ContextError(
        f"A block of {context!r} ended {where} before a newer one of another context, {newest!r}, in which "
        "computations ran meanwhile; tasks of an event loop share its thread: use one context per loop, or make the "
        "coroutine in a block of fedstack.use_context without `await` in it"
    )


class InForceInBlocks(ClosesOnExit):
    """The base of fedstack's contexts: in a block the context is in force in the block's thread."""

    def __init__(self) -> None:
        super().__init__()
        explain_missing_contexts()

    def _closed_error(self) -> ClosedError:
        return closed_error()

    def _entered(self) -> None:
        _enter(cast("SyncContext | AsyncContext", self))

    def _left(self, error: BaseException | None) -> None:
        _leave(cast("SyncContext | AsyncContext", self), error, self.is_entered)

    def _was_last(self) -> bool:
        # An end without a block is a mistake, and must not close the context for its other users.
        return self.is_entered and super()._was_last()


class _UsedContext(contextlib.AbstractContextManager[_C], contextlib.ContextDecorator):
    """Blocks in which a context is in force: one after the other, nested, in several threads."""

    def __init__(self, context: _C) -> None:
        self._context = context
        self._blocks: list[None] = []  # an entry for each that has not ended

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
    """Puts `context` in force for computations called in the block and this thread. The context stays open.

    The language keeps its contexts per thread; use this in every thread that calls computations. Tasks of one event
    loop share a thread, so they should share a context. The result can be used for any number of blocks, and as a
    decorator.

    >>> import fedstack
    >>> with fedstack.use_context(fedstack.create_sync_local_execution_context()):
    ...     pass

    Args:
      context: A context of fedstack's, or any other of the language's.

    Raises:
      TypeError: If it is not a context.
      ContextError: If a newer block of another context has not ended at the end of this one.
    """
    if not isinstance(cast(object, context), (SyncContext, AsyncContext)):
        advice = "give" if not inspect.isfunction(context) else "call it:"
        raise TypeError(
            f"Expected an execution context, found {describe(context)}; {advice} "
            "fedstack.create_sync_local_execution_context(), for example"
        )
    return _UsedContext(context)
