"""Shows how far work is: a bar in a terminal where rich is installed, else a plain line every few seconds.

Whoever works only counts. A thread of its own looks at the counts now and then and draws, so that work neither waits
for a terminal nor fails with one. Work that is soon done shows nothing.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, TextIO

import attrs

from fedstack.computations.types.language import ConcreteComputation
from fedstack.contexts.observed_call import name_of_computation
from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.foundations.error_text import printable
from fedstack.transport.peers.daemon_threads import start_daemon
from fedstack.transport.wire.frames import Work

_logger = logging.getLogger(__name__)
# Who has worked for so long is named.
_LONG_SECONDS = 3.0


@attrs.frozen
class ProgressSnapshot:
    """How far work is.

    Attributes:
      done: How many units are done.
      total: How many there are, as far as is known; 0 if nothing is.
      note: What else there is to say, in a few words.
      title: What is being done, if that is known only now.
    """

    done: int
    total: int
    note: str = ""
    title: str = ""


class Display(Protocol):
    """Shows the snapshot of one piece of work, called from one thread.

    Attributes:
      seconds_before: How long work must last to be shown.
      seconds_between: How often it is shown.
    """

    seconds_before: float
    seconds_between: float

    def show(self, snapshot: ProgressSnapshot) -> None:
        """Shows where work stands now."""
        ...

    def close(self, snapshot: ProgressSnapshot) -> None:
        """Ends the display; where work stands at its end."""
        ...


class LineDisplay:
    """Writes a line to standard error every few seconds, and one at the end if there were others."""

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
        self._print(f"ended after {seconds:.1f} s, {snapshot.done} of {snapshot.total} {self._unit} done")

    def _print(self, text: str) -> None:
        print(f"{self._title}: {text}", file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether one can draw on `stream`. The output of a notebook's cell is no terminal."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


class PlainText(contextlib.AbstractContextManager["PlainText"]):
    """Prints a text again and again, one under the other."""

    def show(self, text: str) -> None:
        """Shows a text in place of the last one."""
        print(text, flush=True)

    def __exit__(self, *_: object) -> None:
        pass


class TextDisplay(Protocol):
    """Shows a text that changes, on standard output, for the duration of a block."""

    def __enter__(self) -> "TextDisplay": ...

    def show(self, text: str) -> None:
        """Shows a text in place of the last one."""
        ...

    def __exit__(self, *error: Any) -> None: ...


def choose_text_display() -> TextDisplay:
    """Returns what suits standard output."""
    if is_terminal(sys.stdout):
        with contextlib.suppress(ImportError):
            from fedstack.contexts.rich_display import LiveText

            return LiveText()
    return PlainText()


def choose_display(title: str, unit: str) -> Display:
    """Returns what suits standard error."""
    if is_terminal(sys.stderr):
        # rich is optional, and slow to import where nothing is drawn.
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
    """Shows the snapshot of work while the block runs.

    Args:
      title: What is being done.
      unit: What `snapshot` counts, in the plural.
      snapshot: Tells how far work is; called from another thread.
      choose: Makes the display from title and unit.
    """
    ended = threading.Event()
    watcher: threading.Thread | None = None
    try:
        watcher = start_daemon(_watch, title, unit, snapshot, choose, ended, name="fedstack-progress")
    except ResourceLimitError:  # the work may need no thread
        _logger.debug("Cannot show progress", exc_info=True)
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
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  # so it is under pythonw.exe
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
    except Exception:  # a closed pipe, say: whoever works does not care
        _logger.debug("Cannot show progress any more", exc_info=True)


@contextlib.contextmanager
def show_progress(computation: ConcreteComputation) -> Generator[ProgressCounts]:
    """Shows the clients of one invocation while the block runs, which is to count them."""
    counts = ProgressCounts()
    name = name_of_computation(computation)

    def snapshot() -> ProgressSnapshot:
        nonlocal name
        work = counts.work()
        name = work[0].function if work else name
        notes = [f"{counts.running} running"]
        if counts.failures:
            notes.append(f"{counts.failures} failed")
        if work and work[0].seconds >= _LONG_SECONDS:
            notes.append(_shown(work[0]))
        return ProgressSnapshot(counts.done, counts.total, ", ".join(notes), printable(name))

    with display(name or "computation", "clients", snapshot):
        yield counts


def _shown(work: Work) -> str:
    """Says who works, and for how long: `client 7 for 8 s`."""
    first, last = work.first_client, work.first_client + work.clients - 1
    if work.client is not None:
        first = last = work.client
    who = "the server" if not work.clients else f"client {first}" if first == last else f"clients {first} to {last}"
    return f"{who} for {work.seconds:.0f} s"
