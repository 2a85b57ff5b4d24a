"""Keeps what users show progress with apart from the work: its errors say whose they are, and end nothing halfway."""

import contextlib
import logging
from collections.abc import Callable, Generator
from typing import cast

from fedstack.computations.types.error_text import text_of
from fedstack.computations.types.language import ConcreteComputation
from fedstack.computations.types.traceback_filter import users_lines, without_calling_frames
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.progress import ProgressCounts, Worker

Progress = Callable[[ConcreteComputation], contextlib.AbstractContextManager[ProgressCounts]]

_logger = logging.getLogger(__name__)
_COUNTING = ("expect", "started", "finished", "failed")


class GuardedProgress(ProgressCounts):
    """Counts with what a progress function gave, until that raises; the next clients to begin raise the error then.

    Where clients begin, an error ends the run as one of theirs does; where they end, threads would be left behind.

    There is one for each attempt at the invocation, and the last one counts: what earlier ones still do does not.
    """

    def __init__(self, counts: ProgressCounts, shown: str, errors: list[InvalidValueError] | None = None) -> None:
        super().__init__()
        self._counts = counts
        self._shown = shown
        self._errors: list[InvalidValueError] = [] if errors is None else errors  # of all attempts
        self._is_over = False

    def expect(self, clients: int) -> None:
        self._guard(lambda: self._counts.expect(clients))
        self.check()

    def started(self, clients: int) -> None:
        self._guard(lambda: self._counts.started(clients))
        self.check()

    def finished(self, clients: int) -> None:
        self._guard(lambda: self._counts.finished(clients))

    def failed(self, clients: int) -> None:
        self._guard(lambda: self._counts.failed(clients))

    def watch(self, worker: Worker) -> None:
        if isinstance(cast(object, self._counts), ProgressCounts):  # others only count
            self._guard(lambda: self._counts.watch(worker))

    def next_attempt(self) -> "GuardedProgress":
        """Returns what counts the next attempt, from the beginning."""
        if isinstance(cast(object, self._counts), ProgressCounts):
            self._guard(self._counts.restart)
        self._is_over = True
        return GuardedProgress(self._counts, self._shown, self._errors)

    def check(self) -> None:
        """Raises the error that there has been, if any."""
        for error in self._errors:
            raise error from error.__cause__

    def _guard(self, count: Callable[[], None]) -> None:
        if not self._errors and not self._is_over:
            try:
                count()
            except Exception as error:
                found = _error_of(error, self._shown)
                found.__cause__ = error
                self._errors.append(found)


@contextlib.contextmanager
def showing(progress: Progress, computation: ConcreteComputation) -> Generator[GuardedProgress | None]:
    """Shows the progress of an invocation while the block runs.

    An error of the block is raised whatever the context manager makes of it.

    Yields:
      What counts the clients; `None` if nothing does.

    Raises:
      InvalidValueError: If the function, its context manager or what it counts with raises, or is something else.
    """
    shown = getattr(progress, "__qualname__", repr(progress))
    with _named(shown):
        manager = progress(computation)
        if not isinstance(cast(object, manager), contextlib.AbstractContextManager):
            raise InvalidValueError(
                f"Expected the progress function {shown!r} to return a context manager, found {describe(manager)}; "
                "decorate it with contextlib.contextmanager and yield what counts, ProgressCounts() for example"
            )
        counts = cast(object, manager.__enter__())
        if counts is not None and not all(callable(getattr(counts, name, None)) for name in _COUNTING):
            raise InvalidValueError(
                f"Expected the progress function {shown!r} to give what counts, with the methods "
                f"{', '.join(_COUNTING)}, or None, found {describe(counts)}; yield ProgressCounts() for example"
            )
    guarded = None if counts is None else GuardedProgress(cast(ProgressCounts, counts), shown)
    try:
        yield guarded
        if guarded is not None:
            guarded.check()
    except BaseException as error:
        try:
            manager.__exit__(type(error), error, error.__traceback__)
        except Exception as other:
            if other is not error:
                # As text: whoever keeps log records must not keep the frames of the error alive, and their values.
                said = f"{type(other).__name__}: {text_of(other)}"
                _logger.warning("Cannot end the progress of an invocation that failed: %s", said)
        raise
    with _named(shown):
        manager.__exit__(None, None, None)


@contextlib.contextmanager
def _named(shown: str) -> Generator[None]:
    try:
        yield
    except InvalidValueError:
        raise
    except Exception as error:
        raise _error_of(error, shown) from error


def _error_of(error: Exception, shown: str) -> InvalidValueError:
    lines = users_lines(error)  # before it loses the frames that tell what the standard library did for us
    error.__traceback__ = without_calling_frames(error.__traceback__)
    return InvalidValueError(
        f"Expected the progress function {shown!r} to show how far work is, found that it raised "
        f"{type(error).__name__}: {text_of(error)}; catch what may go wrong there, or leave out progress={lines}"
    )
