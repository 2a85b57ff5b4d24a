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
from typing import Protocol, TextIO

import attrs

from fedstack.computations.language import ConcreteComputation
from fedstack.executors.progress import ProgressCounts

_logger = logging.getLogger(__name__)


@attrs.frozen
class Standing:
    """How far work is.

    Attributes:
      done: How many units are done.
      total: How many there are, as far as is known; 0 if nothing is.
      note: What else there is to say, in a few words.
    """

    done: int
    total: int
    note: str = ""


class Display(Protocol):
    """Shows the standing of one piece of work, called from one thread.

    Attributes:
      seconds_before: How long work must last to be shown.
      seconds_between: How often it is shown.
    """

    seconds_before: float
    seconds_between: float

    def show(self, standing: Standing) -> None:
        """Shows where work stands now."""
        ...

    def close(self, standing: Standing) -> None:
        """Ends the display; where work stands at its end."""
        ...


class LineDisplay:
    """Writes a line to standard error every few seconds, and one at the end if there were others."""

    def __init__(self, title: str, unit: str, *, seconds_between: float = 3.0) -> None:
        self.seconds_before = self.seconds_between = seconds_between
        self._title = title
        self._unit = unit
        self._begin = time.monotonic()

    def show(self, standing: Standing) -> None:
        note = f", {standing.note}" if standing.note else ""
        self._print(f"{standing.done} of {standing.total} {self._unit} done{note}")

    def close(self, standing: Standing) -> None:
        seconds = time.monotonic() - self._begin
        self._print(f"ended after {seconds:.1f} s, {standing.done} of {standing.total} {self._unit} done")

    def _print(self, text: str) -> None:
        print(f"{self._title}: {text}", file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether one can draw on `stream`. The output of a notebook's cell is no terminal."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def choose_display(title: str, unit: str) -> Display:
    """Returns what suits standard error."""
    if is_terminal(sys.stderr):
        # rich is optional, and slow to import where nothing is drawn.
        with contextlib.suppress(ImportError):
            from fedstack.executors.rich_display import BarDisplay

            return BarDisplay(title, unit)
    return LineDisplay(title, unit)


@contextlib.contextmanager
def display(
    title: str,
    unit: str,
    standing: Callable[[], Standing],
    choose: Callable[[str, str], Display] = choose_display,
) -> Generator[None]:
    """Shows the standing of work while the block runs.

    Args:
      title: What is being done.
      unit: What `standing` counts, in the plural.
      standing: Tells how far work is; called from another thread.
      choose: Makes the display from title and unit.
    """
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(title, unit, standing, choose, ended), name="fedstack-progress", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(
    title: str,
    unit: str,
    standing: Callable[[], Standing],
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
            shown.show(standing())
            while not ended.wait(shown.seconds_between):
                shown.show(standing())
        finally:
            shown.close(standing())
    except Exception:  # a closed pipe, say: whoever works does not care
        _logger.debug("Cannot show progress any more", exc_info=True)


@contextlib.contextmanager
def show_progress(computation: ConcreteComputation) -> Generator[ProgressCounts]:
    """Shows the clients of one invocation while the block runs, which is to count them."""
    counts = ProgressCounts()

    def standing() -> Standing:
        failures = f", {counts.failures} failed" if counts.failures else ""
        return Standing(counts.done, counts.total, f"{counts.running} running{failures}")

    # The language gives federated computations no name.
    with display(getattr(computation, "__name__", "computation"), "clients", standing):
        yield counts
