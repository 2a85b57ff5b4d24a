"""Keeps what users show progress with apart from the work: if it raises, that is said once, and it is detached."""

import contextlib
import logging
from collections.abc import Callable, Generator
from typing import cast

from fedstack.computations.types.error_text import text_of
from fedstack.computations.types.language import ConcreteComputation
from fedstack.computations.types.traceback_filter import users_lines
from fedstack.executors.concurrency.progress import ProgressCounts, Worker

Progress = Callable[[ConcreteComputation], contextlib.AbstractContextManager[ProgressCounts]]

_logger = logging.getLogger(__name__)


class ProgressObserver:
    """Shows the progress of the invocations of a context, until the progress function or what it gave raises."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._is_detached = False

    @contextlib.contextmanager
    def shown(self, computation: ConcreteComputation) -> Generator["GuardedProgress | None"]:
        """Shows the progress of an invocation while the block runs.

        An error of the block is raised whatever the progress function's context manager makes of it.

        Yields:
          What counts the clients; `None` if nothing does.
        """
        manager = contextlib.ExitStack()
        found: list[ProgressCounts | None] = []
        self.call(lambda: found.append(manager.enter_context(self._progress(computation))))
        counts = found[0] if found else None
        try:
            yield None if counts is None else GuardedProgress(counts, self)
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
                # As text: whoever keeps log records must not keep the frames of the error alive, and their values.
                said, lines = f"{type(error).__name__}: {text_of(error)}", users_lines(error)
                shown = getattr(self._progress, "__qualname__", repr(self._progress))
                _logger.warning("The progress function %r raised %s; it is not called any more%s", shown, said, lines)


class GuardedProgress(ProgressCounts):
    """Counts with what a progress function gave.

    There is one for each attempt at the invocation, and the last one counts: what earlier ones still do does not.
    """

    def __init__(self, counts: ProgressCounts, observer: ProgressObserver) -> None:
        super().__init__()
        self._counts = counts
        self._observer = observer
        self._is_over = False
        self._knows_more = isinstance(cast(object, counts), ProgressCounts)  # others only count

    def expect(self, clients: int) -> None:
        self._tell(lambda: self._counts.expect(clients))

    def started(self, clients: int) -> None:
        self._tell(lambda: self._counts.started(clients))

    def finished(self, clients: int) -> None:
        self._tell(lambda: self._counts.finished(clients))

    def failed(self, clients: int) -> None:
        self._tell(lambda: self._counts.failed(clients))

    def watch(self, worker: Worker) -> None:
        if self._knows_more:
            self._tell(lambda: self._counts.watch(worker))

    def next_attempt(self) -> "GuardedProgress":
        """Returns what counts the next attempt, from the beginning."""
        if self._knows_more:
            self._tell(self._counts.restart)
        self._is_over = True
        return GuardedProgress(self._counts, self._observer)

    def _tell(self, count: Callable[[], None]) -> None:
        if not self._is_over:
            self._observer.call(count)
