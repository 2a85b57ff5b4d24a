"""Progress: what is counted, and how it is shown."""

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import InvalidValueError
from fedstack.executors import SyncExecutionContext
from fedstack.executors.progress import ProgressCounts
from fedstack.executors.progress_display import LineDisplay, Standing, choose_display, display, show_progress
from fedstack.executors.progress_guard import Progress
from fedstack.service.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.executor_stub import ExecutorStub
from fedstack.transport.io_loop import io_loop

INTS = fl.FederatedType(np.int32, fl.CLIENTS)


@fedstack.python_computation([np.int32], np.int32)
def double(x: np.int32) -> np.int32:
    if x < 0:
        raise ValueError("negative")
    return x + x


@fl.federated_computation(INTS)
def double_all(values: fl.Value) -> fl.Value:
    return fl.federated_map(double, values)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Recorder:
    """A display that notes what it is asked to show."""

    seconds_before = 0.0
    seconds_between = 0.0

    def __init__(self) -> None:
        self.shown: list[Standing] = []
        self.closed: list[Standing] = []
        self.was_shown = threading.Event()

    def show(self, standing: Standing) -> None:
        self.shown.append(standing)
        self.was_shown.set()

    def close(self, standing: Standing) -> None:
        self.closed.append(standing)


def use_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm") -> Terminal:
    """Makes standard error a terminal; not a fixture, because pytest sets standard error anew when a test begins."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return terminal


def threads_of_displays() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "fedstack-progress"]


def test_every_client_of_an_invocation_is_counted() -> None:
    counts = ProgressCounts()
    with fedstack.use_context(
        fedstack.create_sync_local_execution_context(progress=lambda _: contextlib.nullcontext(counts))
    ):
        double_all(list(range(1000)))
    assert (counts.total, counts.done, counts.running, counts.failures) == (1000, 1000, 0, 0)


def test_clients_that_fail_are_counted_and_none_stays_running() -> None:
    counts = ProgressCounts()
    context = fedstack.create_sync_local_execution_context(
        progress=lambda _: contextlib.nullcontext(counts), max_concurrent_clients=1
    )
    with fedstack.use_context(context), pytest.raises(fedstack.FedstackError, match="client 2"):
        double_all([1, 2, -3, 4])
    assert counts.failures > 0
    assert counts.running == 0


def test_a_listener_hears_of_every_change() -> None:
    heard: list[tuple[int, int, int]] = []

    class Listener:
        def changed(self, counts: ProgressCounts) -> None:
            heard.append((counts.total, counts.running, counts.done))

    counts = ProgressCounts(Listener())
    counts.expect(3)
    counts.started(2)
    counts.finished(2)
    assert heard == [(3, 0, 0), (3, 2, 0), (3, 0, 2)]


class FailingListener:
    def __init__(self, when: Callable[[ProgressCounts], bool]) -> None:
        self.when = when

    def changed(self, counts: ProgressCounts) -> None:
        if self.when(counts):
            raise OSError("screen on fire")


def failing_when(when: Callable[[ProgressCounts], bool]) -> Progress:
    def on_a_screen(_: object) -> contextlib.AbstractContextManager[ProgressCounts]:
        return contextlib.nullcontext(ProgressCounts(FailingListener(when)))

    return on_a_screen


@contextlib.contextmanager
def fails_at_the_beginning(_: object) -> Iterator[ProgressCounts]:
    raise OSError("screen on fire")
    yield ProgressCounts()


@contextlib.contextmanager
def fails_at_the_end(_: object) -> Iterator[ProgressCounts]:
    yield ProgressCounts()
    raise OSError("screen on fire")


def fails_at_once(_: object) -> contextlib.AbstractContextManager[ProgressCounts]:
    raise OSError("screen on fire")


@contextlib.contextmanager
def over_a_worker(progress: Progress) -> Iterator[None]:
    service = ExecutorService(fedstack.local_executor_factory())
    stub = ExecutorStub(InMemoryConnection(service, "worker"))
    with SyncExecutionContext(fedstack.remote_executor_factory([stub]), progress=progress) as context:
        with fedstack.use_context(context):
            yield
    io_loop.run_sync(service.close())


@contextlib.contextmanager
def in_this_process(progress: Progress) -> Iterator[None]:
    with fedstack.create_sync_local_execution_context(progress=progress) as context, fedstack.use_context(context):
        yield


@pytest.mark.parametrize("place", [in_this_process, over_a_worker])
@pytest.mark.parametrize(
    "progress",
    [
        fails_at_once,
        fails_at_the_beginning,
        fails_at_the_end,
        failing_when(lambda counts: True),
        failing_when(lambda counts: counts.running > 0),
        failing_when(lambda counts: counts.done > 0),
        failing_when(lambda counts: counts.done == 1000),
    ],
)
def test_a_progress_function_that_raises_ends_the_invocation_with_an_error_that_names_it(
    progress: Progress, place: Callable[[Progress], contextlib.AbstractContextManager[None]]
) -> None:
    message = r"the progress function '.*(fails_at|on_a_screen).*raised OSError: screen on fire; catch .*\n  File "
    with place(progress):
        for _ in range(2):
            with pytest.raises(InvalidValueError, match=message) as caught:
                double_all(list(range(1000)))
        assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        (lambda _: ProgressCounts(), "to return a context manager, found ProgressCounts .* decorate it"),
        (lambda _: contextlib.nullcontext(3), "to give what counts, with the methods expect, .*, or None, found int 3"),
    ],
)
def test_a_progress_function_that_gives_something_else_is_told_what_to_give(progress: Any, message: str) -> None:
    with in_this_process(progress), pytest.raises(InvalidValueError, match=message):
        double_all([1])


@contextlib.contextmanager
def swallows_errors(_: object) -> Iterator[ProgressCounts]:
    with contextlib.suppress(Exception):
        yield ProgressCounts()


@contextlib.contextmanager
def raises_another_error(_: object) -> Iterator[ProgressCounts]:
    try:
        yield ProgressCounts()
    finally:
        raise OSError("screen on fire")


@pytest.mark.parametrize("progress", [swallows_errors, raises_another_error, failing_when(lambda c: c.failures > 0)])
def test_an_error_of_a_computation_is_raised_whatever_shows_the_progress(progress: Progress) -> None:
    with in_this_process(progress), pytest.raises(fedstack.FedstackError, match="negative; at client 1"):
        double_all([1, -2])


def test_a_call_shows_nothing_unless_asked(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        double_all([1, 2])
    assert terminal.getvalue() == ""
    assert capfd.readouterr() == ("", "")


def test_quick_work_shows_nothing_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with fedstack.use_context(fedstack.create_sync_local_execution_context(progress=True)):
        assert double_all([1, 2]) == [2, 4]
    assert terminal.getvalue() == ""
    assert threads_of_displays() == []


def test_a_display_shows_where_work_stands_until_it_ends() -> None:
    recorder, done = Recorder(), 0
    with display("Work", "steps", lambda: Standing(done, 2), lambda *_: recorder):
        recorder.was_shown.wait()
        done = 2
    assert recorder.shown[0] == Standing(0, 2)
    assert recorder.closed == [Standing(2, 2)]
    assert threads_of_displays() == []


def test_a_display_is_closed_when_work_fails() -> None:
    recorder = Recorder()

    def work() -> None:
        with display("Work", "steps", lambda: Standing(0, 2), lambda *_: recorder):
            recorder.was_shown.wait()
            raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        work()
    assert recorder.closed == [Standing(0, 2)]


def test_work_does_not_notice_that_its_display_fails() -> None:
    reached = threading.Event()

    class Broken(Recorder):
        def show(self, standing: Standing) -> None:
            reached.set()
            raise BrokenPipeError

    with display("Work", "steps", lambda: Standing(0, 2), lambda *_: Broken()):
        reached.wait()


def test_work_does_not_notice_that_there_is_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with display("Work", "steps", lambda: Standing(0, 2)):
        pass


def test_a_line_says_how_many_clients_are_done_running_and_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    written, standings = io.StringIO(), list[Callable[[], Standing]]()
    monkeypatch.setattr(
        "fedstack.executors.progress_display.display",
        lambda title, unit, standing: contextlib.nullcontext(standings.append(standing)),
    )
    monkeypatch.setattr(sys, "stderr", written)
    with show_progress(double) as counts:
        counts.expect(10)
        counts.started(4)
        counts.finished(2)
        counts.failed(1)
        LineDisplay("double", "clients").show(standings[0]())
    assert written.getvalue() == "double: 2 of 10 clients done, 1 running, 1 failed\n"


def test_a_line_display_waits_for_seconds_before_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineDisplay("Work", "steps", seconds_between=5)
    assert (lines.seconds_before, lines.seconds_between) == (5, 5)
    lines.close(Standing(1, 2))
    assert capsys.readouterr().err.endswith("s, 1 of 2 steps done\n")


def test_progress_is_lines_where_standard_error_is_no_terminal() -> None:
    assert isinstance(choose_display("Work", "steps"), LineDisplay)


def test_progress_is_lines_in_a_terminal_that_cannot_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "dumb")
    assert isinstance(choose_display("Work", "steps"), LineDisplay)


def test_progress_is_lines_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    monkeypatch.delitem(sys.modules, "fedstack.executors.rich_display", raising=False)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert isinstance(choose_display("Work", "steps"), LineDisplay)


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    bar = choose_display("Work", "steps")
    bar.show(Standing(1, 4, "so far so good"))
    assert "Work" in terminal.getvalue()
    assert "1 of 4 steps" in terminal.getvalue()
    assert "so far so good" in terminal.getvalue()
    bar.close(Standing(4, 4))
    erase_line = "\x1b[2K"
    assert erase_line in terminal.getvalue().rpartition("so far so good")[2]


def test_a_bar_has_no_colours_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    bar = choose_display("Work", "steps")
    bar.show(Standing(1, 4))
    bar.close(Standing(4, 4))
    assert "1 of 4 steps" in terminal.getvalue()
    assert "\x1b[3" not in terminal.getvalue()


def test_bars_of_several_invocations_share_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    first, second = choose_display("First", "steps"), choose_display("Second", "steps")
    first.show(Standing(1, 4))
    second.show(Standing(0, 0))
    first.close(Standing(4, 4))
    second.show(Standing(2, 3))
    assert "2 of 3 steps" in terminal.getvalue()
    second.close(Standing(3, 3))


def test_what_is_printed_while_a_bar_is_shown_goes_where_it_always_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    bar = choose_display("Work", "steps")
    bar.show(Standing(1, 4))
    print("a result")
    bar.close(Standing(4, 4))
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in terminal.getvalue()
