"""Keeps what users show progress with apart from the work: if it raises, that is said once, and it is detached."""

import contextlib
import logging
from collections.abc import Callable, Generator
from typing import cast

from fedstack.computations.types.language import ConcreteComputation
from fedstack.executors.concurrency.progress import ObservedCounts, ProgressCounts, ReportsWork
from fedstack.observe.observers import log_raised
from fedstack.observe.spans import Span

Progress = Callable[[ConcreteComputation], contextlib.AbstractContextManager[ProgressCounts]]

_logger = logging.getLogger(__name__)


class ProgressObserver:
    """Shows the progress of the invocations of a context, until the progress function or what it gave raises."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._is_detached = False

    @contextlib.contextmanager
    def shown(self, computation: ConcreteComputation, span: Span) -> Generator["GuardedProgress"]:
        """Shows the progress of an invocation while the block runs.

        An error of the block is raised whatever the progress function's context manager makes of it.

        Yields:
          What counts the clients.
        """
        manager = contextlib.ExitStack()
        found: list[ProgressCounts | None] = []
        self.call(lambda: found.append(manager.enter_context(self._progress(computation))))
        try:
            yield GuardedProgress(span, found[0] if found else None, self.call)
        except BaseException as error:
            self._try(manager.__exit__, type(error), error, error.__traceback__)
            raise
        self._try(manager.close)

    def call(self, tell: Callable[[], object]) -> None:
        """Calls what shows the progress, unless that has raised before."""
        if not self._is_detached:
            self._try(tell)

    def _try(self, tell: Callable[..., object], *arguments: object) -> None:
        try:
            tell(*arguments)
        except Exception as error:
            if not (self._is_detached or any(error is argument for argument in arguments)):
                self._is_detached = True
                shown = getattr(self._progress, "__qualname__", repr(self._progress))
                log_raised(_logger, f"The progress function {shown!r}", error, "it is not called any more")


class GuardedProgress(ObservedCounts):
    """Counts, and lets what a progress function gave count too.

    There is one for each attempt at the invocation, and the last one counts: what earlier ones still do does not.

    Args:
      span: The invocation.
      shown: What the progress function gave, if there is one.
      call: Calls that.
    """

    def __init__(
        self,
        span: Span,
        shown: ProgressCounts | None = None,
        call: Callable[[Callable[[], object]], None] = lambda tell: None,
    ) -> None:
        super().__init__(span)
        self._shown = shown
        self._call = call
        self._is_over = False
        self._knows_more = isinstance(cast(object, shown), ProgressCounts)  # others only count

    def _change(self, total: int = 0, done: int = 0, running: int = 0, failures: int = 0, given_up: int = 0) -> None:
        if self._is_over:
            return
        super()._change(total, done, running, failures, given_up)
        if (shown := self._shown) is not None:
            more = [given_up] if self._knows_more else []
            self._call(lambda: _count(shown, total, done, running, failures, *more))

    def watch(self, worker: ReportsWork) -> None:
        if (shown := self._shown) is not None and self._knows_more and not self._is_over:
            self._call(lambda: shown.watch(worker))

    def next_attempt(self) -> "GuardedProgress":
        """Returns what counts the next attempt, from the beginning."""
        self._is_over = True
        if self._shown is not None and self._knows_more:
            self._call(self._shown.restart)
        return GuardedProgress(self.span, self._shown, self._call)


def _count(shown: ProgressCounts, total: int, done: int, running: int, failures: int, *given_up: int) -> None:
    if total:
        shown.expect(total)
    if running > 0:
        shown.started(running)
    if done:
        shown.finished(done)
    if failures or any(given_up):
        shown.failed(failures, *given_up)
