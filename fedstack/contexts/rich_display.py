"""Draws progress bars and tables in a terminal. Only this module imports rich, which is optional."""

import sys
import threading
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedstack.contexts.progress_display import PlainText, ProgressSnapshot
from fedstack.foundations.after_fork import renew_after_fork


class _Bars(Progress):
    """Progress bars, with the lines below them."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            # The lines are drawings that other encodings do not have.
            if (below := task.fields["below"]) and self.console.encoding.startswith("utf"):
                lines = Text.from_markup(below, overflow="crop")
                lines.no_wrap = True
                yield lines


class _LiveBars:
    """All progress bars of this process, drawn in one live display, because a terminal can have only one.

    The live display exists only while it has bars.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        renew_after_fork(self)

    def renew(self) -> None:
        """Detaches a forked child from the live display, which stays with the parent because it contains locks.

        The output of the child bypasses the display.
        """
        self._lock = threading.Lock()
        if self._progress is not None:
            self._progress = None
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if isinstance(stream, FileProxy):
                    setattr(sys, name, stream.rich_proxied_file)

    def add(self, title: str, unit: str) -> TaskID:
        with self._lock:
            if self._progress is None:
                progress = _Bars(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    TextColumn("{task.completed} of {task.fields[of]} {task.fields[unit]}"),
                    TimeElapsedColumn(),
                    TextColumn("{task.fields[note]}", style="dim"),
                    console=Console(stderr=True),
                    auto_refresh=False,
                    transient=True,
                    # rich prints redirected output above the bars. Output to a file or a pipe must stay unchanged.
                    redirect_stdout=sys.stdout.isatty(),
                )
                progress.start()
                self._progress = progress
            return self._progress.add_task(escape(title), total=None, unit=unit, of="?", note="", below="")

    def update(self, bar: TaskID, snapshot: ProgressSnapshot) -> None:
        with self._lock:
            if self._progress is not None:
                self._progress.update(
                    bar,
                    description=escape(snapshot.title) if snapshot.title else None,
                    completed=snapshot.done,
                    total=snapshot.total or None,
                    of=snapshot.total or "?",
                    note=snapshot.note,
                    below=snapshot.below,
                )
                self._progress.refresh()

    def remove(self, bar: TaskID) -> None:
        with self._lock:
            if self._progress is not None:
                self._progress.remove_task(bar)
                if not self._progress.tasks:
                    progress, self._progress = self._progress, None
                    progress.stop()


_bars = _LiveBars()


class BarDisplay:
    """A progress bar on standard error that disappears when the work ends."""

    seconds_before = 0.3
    seconds_between = 0.1

    def __init__(self, title: str, unit: str) -> None:
        self._title = title
        self._unit = unit
        self._bar: TaskID | None = None

    def show(self, snapshot: ProgressSnapshot) -> None:
        if self._bar is None:
            self._bar = _bars.add(self._title, self._unit)
        _bars.update(self._bar, snapshot)

    def close(self, snapshot: ProgressSnapshot) -> None:
        del snapshot
        if self._bar is not None:
            _bars.remove(self._bar)


class LiveText(PlainText):
    """Text on standard output that is updated in place. The last version stays on the screen."""

    def __init__(self) -> None:
        self._live = Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> "LiveText":
        self._live.start()
        return self

    def show(self, text: str) -> None:
        self._live.update(Text(text), refresh=True)

    def __exit__(self, *error: object) -> None:
        self._live.stop()


def draw_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table of numbers to standard output."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in header:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
