"""Shows the progress of work: a bar in a terminal if rich is installed, otherwise a plain line every few seconds.

The work only updates counts. A separate thread reads the counts periodically and draws them, so that a slow or broken
terminal neither delays the work nor makes it fail. Nothing is shown for short work.

A user's progress function cannot make the work fail either: if the function raises, the error is logged once, and the
function is not called again.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Protocol, TextIO, cast

import attrs

from fedstack.computations.types.language import ConcreteComputation
from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency.progress import ObservedCounts, ProgressCounts, ReportsWork
from fedstack.foundations.error_text import printable
from fedstack.observe.events import Span
from fedstack.observe.observers import log_raised
from fedstack.transport.peers.daemon_threads import start_daemon
from fedstack.transport.wire.frames import RunningClients

Progress = Callable[[ConcreteComputation], contextlib.AbstractContextManager[ProgressCounts]]

_logger = logging.getLogger(__name__)
# Clients that have run for at least this long are named in the display.
_LONG_SECONDS = 3.0
# How many of them are named.
_MOST_SHOWN = 2


@attrs.frozen
class ProgressSnapshot:
    """The progress of work at one point in time.

    Attributes:
      done: The number of completed units.
      total: The total number of units; 0 if it is unknown.
      note: Additional information, in a few words.
      title: A name for the work that replaces the display's title; empty to keep the title.
      below: Lines below a bar in a terminal, with the markup of rich. Other displays leave them out.
    """

    done: int
    total: int
    note: str = ""
    title: str = ""
    below: str = ""


class Display(Protocol):
    """Displays the progress of one piece of work. All methods are called from the same thread.

    Attributes:
      seconds_before: The time in seconds before the first snapshot. Shorter work is not shown.
      seconds_between: The interval between snapshots, in seconds.
    """

    seconds_before: float
    seconds_between: float

    def show(self, snapshot: ProgressSnapshot) -> None:
        """Shows a snapshot in place of the previous one."""
        ...

    def close(self, snapshot: ProgressSnapshot) -> None:
        """Shows the last snapshot and ends the display."""
        ...


class LineDisplay:
    """Writes a line to standard error every few seconds, and a final line when the work ends."""

    def __init__(self, title: str, unit: str, *, seconds_between: float = 3.0) -> None:
        self.seconds_before = self.seconds_between = seconds_between
        self._title = title
        self._unit = unit
        self._begin = time.monotonic()

    def show(self, snapshot: ProgressSnapshot) -> None:
        self._title = snapshot.title or self._title
        note = f", {snapshot.note}" if snapshot.note else ""
        self._print(f"{snapshot.done} of {snapshot.total} {self._unit} done{note}")

    def close(self, snapshot: ProgressSnapshot) -> None:
        seconds = time.monotonic() - self._begin
        self._print(f"ended after {seconds:.1f} s with {snapshot.done} of {snapshot.total} {self._unit} done")

    def _print(self, text: str) -> None:
        print(f"{self._title}: {text}", file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Returns whether `stream` is a terminal that can be drawn on. The output of a notebook cell is not a terminal."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


class PlainText(contextlib.AbstractContextManager["PlainText"]):
    """Displays a changing text on standard output by printing each version below the previous one."""

    def show(self, text: str) -> None:
        """Shows a new version of the text."""
        print(text, flush=True)

    def __exit__(self, *_: object) -> None:
        pass


def choose_text_display() -> PlainText:
    """Returns the display to use for a changing text on standard output."""
    if is_terminal(sys.stdout):
        with contextlib.suppress(ImportError):
            from fedstack.contexts.rich_display import LiveText

            return LiveText()
    return PlainText()


def choose_display(title: str, unit: str) -> Display:
    """Returns the progress display to use on standard error."""
    if is_terminal(sys.stderr):
        # rich is optional, and slow to import, so it is imported only to draw.
        with contextlib.suppress(ImportError):
            from fedstack.contexts.rich_display import BarDisplay

            return BarDisplay(title, unit)
    return LineDisplay(title, unit)


@contextlib.contextmanager
def display(
    title: str,
    unit: str,
    snapshot: Callable[[], ProgressSnapshot],
    choose: Callable[[str, str], Display] = choose_display,
) -> Generator[None]:
    """Shows the progress of work while the block runs.

    Args:
      title: The name of the work.
      unit: The name of the counted units, in the plural.
      snapshot: A function that returns the current progress. It is called on a separate thread.
      choose: A function that creates the display for a title and a unit.
    """
    ended = threading.Event()
    watcher: threading.Thread | None = None
    try:
        watcher = start_daemon(_watch, title, unit, snapshot, choose, ended, name="fedstack-progress")
    except ResourceLimitError:  # the work may not need a thread, so it continues without a display
        _logger.debug("Cannot start a thread to show progress", exc_info=True)
    try:
        yield
    finally:
        ended.set()
        if watcher is not None:
            watcher.join()


def _watch(
    title: str,
    unit: str,
    snapshot: Callable[[], ProgressSnapshot],
    choose: Callable[[str, str], Display],
    ended: threading.Event,
) -> None:
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  # under pythonw.exe
        return
    try:
        shown = choose(title, unit)
        if ended.wait(shown.seconds_before):
            return
        try:
            shown.show(snapshot())
            while not ended.wait(shown.seconds_between):
                shown.show(snapshot())
        finally:
            shown.close(snapshot())
    except Exception:  # a closed pipe, for example, must not affect the work
        _logger.debug("Stopped showing progress because the display failed", exc_info=True)


@contextlib.contextmanager
def show_progress(computation: ConcreteComputation) -> Generator[ProgressCounts]:
    """Shows the progress of one invocation's clients while the block runs. The block updates the yielded counts."""
    counts = ProgressCounts()
    name = name_of_computation(computation)

    def snapshot() -> ProgressSnapshot:
        nonlocal name
        work = counts.work()
        name = work[0].function if work else name
        notes = [f"{counts.running_now(work)} running"]
        if counts.failures:
            notes.append(f"{counts.failures} failed")
        what = (counts.lost, "to run again"), (counts.moved, "moved"), (counts.twice, "run twice")
        notes += [f"{count} {name}" for count, name in what if count]
        long = [_shown(one) for one in work if one.seconds >= _LONG_SECONDS]
        notes += long[:_MOST_SHOWN]
        if len(long) > _MOST_SHOWN:
            notes.append(f"and {len(long) - _MOST_SHOWN} more")
        return ProgressSnapshot(counts.done, counts.total, ", ".join(notes), printable(name))

    with display(name or "computation", "clients", snapshot):
        yield counts


def _shown(work: RunningClients) -> str:
    """Returns a description of the running work and its duration, such as `client 7 for 8 s`."""
    first, last = work.first_client, work.first_client + work.clients - 1
    if work.client is not None:
        first = last = work.client
    who = "the server" if not work.clients else f"client {first}" if first == last else f"clients {first} to {last}"
    return f"{who} for {work.seconds:.0f} s"


class ProgressObserver:
    """Shows the progress of a context's invocations, until the progress function or its counts raise an error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._is_detached = False

    @contextlib.contextmanager
    def shown(self, computation: ConcreteComputation, span: Span) -> Generator["GuardedProgress"]:
        """Shows the progress of an invocation while the block runs.

        An error in the block is always raised, even if the progress function's context manager suppresses it.

        Yields:
          The counts of the invocation's clients, for the block to update.
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

    def call(self, report: Callable[[], object]) -> None:
        """Calls `report`, unless an earlier call has raised an error."""
        if not self._is_detached:
            self._try(report)

    def _try(self, report: Callable[..., object], *arguments: object) -> None:
        try:
            report(*arguments)
        except Exception as error:
            if not (self._is_detached or any(error is argument for argument in arguments)):
                self._is_detached = True
                shown = getattr(self._progress, "__qualname__", repr(self._progress))
                log_raised(_logger, f"The progress function {shown!r}", error, "it is not called again")


class GuardedProgress(ObservedCounts):
    """Forwards the counts of one attempt at an invocation to the counts that a progress function returned.

    Updates from earlier attempts, whose work may continue for a while, are ignored.

    Args:
      span: The span of the invocation.
      shown: The counts that the progress function returned; `None` without a progress function.
      call: A function that runs an update of `shown` and catches errors that the update raises.
    """

    def __init__(
        self,
        span: Span,
        shown: ProgressCounts | None = None,
        call: Callable[[Callable[[], object]], None] = lambda report: None,
    ) -> None:
        super().__init__(span)
        self._shown = shown
        self._call = call
        self._is_over = False
        self._knows_more = isinstance(cast(object, shown), ProgressCounts)  # other classes do not accept `given_up`

    def _change(self, total: int = 0, done: int = 0, running: int = 0, failures: int = 0, given_up: int = 0) -> None:
        if self._is_over:
            return
        super()._change(total, done, running, failures, given_up)
        if (shown := self._shown) is not None:
            more = [given_up] if self._knows_more else []
            self._call(lambda: _count(shown, total, done, running, failures, *more))

    def withdrawn(self, done: int, running: int, failed: int) -> None:
        if self._is_over:
            return
        super()._change(done=-done, running=-running, failures=-failed)
        if (shown := self._shown) is not None and self._knows_more:
            self._call(lambda: shown.withdrawn(done, running, failed))

    def elsewhere(self, lost: int = 0, moved: int = 0, twice: int = 0) -> None:
        if (shown := self._shown) is not None and self._knows_more and not self._is_over:
            self._call(lambda: shown.elsewhere(lost, moved, twice))

    def watch(self, worker: ReportsWork) -> None:
        if (shown := self._shown) is not None and self._knows_more and not self._is_over:
            self._call(lambda: shown.watch(worker))

    def next_attempt(self) -> "GuardedProgress":
        """Returns the counts for the next attempt, which start at zero."""
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


def name_of_computation(computation: ConcreteComputation) -> str:
    """Returns the name of the Python function behind a computation, or an empty string if the name is unknown.

    The language does not store the name of a federated computation, but derives the names of the computation's
    parameter and locals from it.
    """
    name = getattr(computation, "__name__", "")
    if name:
        return name
    function = getattr(computation.to_proto(), "lambda")
    if function.parameter_name:
        return function.parameter_name.removesuffix("_arg")
    local = function.result.block.local
    return local[0].name.removeprefix("fc_").rpartition("_symbol_")[0] if local else ""
