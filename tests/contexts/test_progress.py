"""Progress: what is counted, and how it is shown."""

import contextlib
import io
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thread_starts import ThreadStarts

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.contexts import SyncExecutionContext
from fedstack.contexts.progress_display import (
    LineDisplay,
    Progress,
    ProgressSnapshot,
    choose_display,
    display,
    show_progress,
)
from fedstack.errors import WorkerUnavailableError
from fedstack.executors.concurrency.progress import PhaseReport, ProgressCounts
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.limits import ServiceLimits
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.frames import Heartbeat, RunningClients
from fedstack.transport.wire.parcels import Parcel

LIMIT = 15.0
INTS = fl.FederatedType(np.int32, fl.CLIENTS)
VECTOR = fl.TensorType(np.float32, [30_000])


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
        self.shown: list[ProgressSnapshot] = []
        self.closed: list[ProgressSnapshot] = []
        self.was_shown = threading.Event()

    def show(self, snapshot: ProgressSnapshot) -> None:
        self.shown.append(snapshot)
        self.was_shown.set()

    def close(self, snapshot: ProgressSnapshot) -> None:
        self.closed.append(snapshot)


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


class Held:
    """Holds up functions until the test opens it, and tells when one of them has come to a number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.reached, self.open = threading.Event(), threading.Event()

    def at(self, number: int) -> None:
        if number == self._number:
            self.reached.set()
            assert self.open.wait(LIMIT)


@contextlib.contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Does something on a thread while the block runs."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(LIMIT)
        assert not thread.is_alive()


def clients_of(work: RunningClients) -> range:
    return range(work.first_client, work.first_client + work.clients)


def called(
    computation: Callable[[object], object], argument: object, progress: Progress, **options: Any
) -> Callable[[], None]:
    def call() -> None:
        context = fedstack.create_sync_local_execution_context(progress=progress, **options)
        with context, fedstack.use_context(context):
            computation(argument)

    return call


def test_what_runs_is_told_with_client_function_and_time() -> None:
    held = Held(5)

    @fedstack.python_computation([np.int32], np.int32)
    def linger(x: Any) -> Any:
        held.at(x)
        return x

    @fl.federated_computation(INTS)
    def linger_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(linger, values)

    counts = ProgressCounts()
    call = called(linger_all, [0, 1, 2, 3, 4, 5], lambda _: contextlib.nullcontext(counts), max_concurrent_clients=1)
    with running(call):
        assert held.reached.wait(LIMIT)
        (first,), (second,) = counts.work(), counts.work()
        held.open.set()
    assert first.function == "linger"
    assert 5 in clients_of(first)
    assert first.client == 5
    assert 0 < first.seconds < second.seconds < LIMIT
    assert counts.work() == []


def test_where_clients_are_counted_one_by_one_it_is_told_which_of_them_runs() -> None:
    held = Held(13)

    @fedstack.python_computation([np.int32], VECTOR)
    def widen(x: Any) -> Any:
        held.at(x)
        return np.full(VECTOR.shape, x, np.float32)

    @fl.federated_computation(INTS)
    def widen_all(values: fl.Value) -> fl.Value:
        return fl.federated_sum(fl.federated_map(widen, values))

    counts = ProgressCounts()
    with running(called(widen_all, list(range(16)), lambda _: contextlib.nullcontext(counts), clients_per_thread=16)):
        assert held.reached.wait(LIMIT)
        found = [(work.first_client, work.clients, work.client) for work in counts.work()]
        held.open.set()
    assert found == [(0, 16, 13)]  # how large results are is not known yet
    held.reached.clear()
    held.open.clear()
    context = fedstack.create_sync_local_execution_context(
        progress=lambda _: contextlib.nullcontext(counts), clients_per_thread=16
    )

    def call_twice() -> None:
        with context, fedstack.use_context(context):
            widen_all([0])
            widen_all(list(range(16)))

    with running(call_twice):
        assert held.reached.wait(LIMIT)
        found = [(work.first_client, work.clients) for work in counts.work()]
        held.open.set()
    assert found == [(13, 1)]


def test_the_clients_of_a_computation_within_a_function_are_not_taken_for_those_of_the_function() -> None:
    held = Held(1)
    inner_counts = ProgressCounts()
    inner = fedstack.create_sync_local_execution_context(
        progress=lambda _: contextlib.nullcontext(inner_counts), max_concurrent_clients=1, clients_per_thread=4
    )

    @fedstack.python_computation([np.int32], np.int32)
    def wait_for_one(x: Any) -> Any:
        held.at(x)
        return x

    @fl.federated_computation(INTS)
    def wait_for_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(wait_for_one, values)

    @fedstack.python_computation([np.int32], np.int32)
    def call_another(x: Any) -> Any:
        with fedstack.use_context(inner):
            return wait_for_all([0, 0, 0, x - 1])[0]

    @fl.federated_computation(INTS)
    def call_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(call_another, values)

    counts = ProgressCounts()
    watched = lambda _: contextlib.nullcontext(counts)  # noqa: E731
    with inner, running(called(call_all, [0, 1, 2, 3], watched, max_concurrent_clients=1, clients_per_thread=4)):
        assert held.reached.wait(LIMIT)
        found = [(work.first_client, work.clients, work.client) for work in counts.work() + inner_counts.work()]
        held.open.set()
    assert found == [(0, 4, 2), (0, 4, 3)]


def test_work_at_the_server_is_told_of_too() -> None:
    held = Held(3)

    @fedstack.python_computation([np.int32], np.int32)
    def settle(x: Any) -> Any:
        held.at(x)
        return x

    counts = ProgressCounts()
    with running(called(settle, 3, lambda _: contextlib.nullcontext(counts))):
        assert held.reached.wait(LIMIT)
        (found,) = counts.work()
        held.open.set()
    assert (found.function, found.clients) == ("settle", 0)
    assert counts.work() == []


def test_of_much_work_only_what_runs_longest_is_told() -> None:
    class Busy:
        def work(self) -> list[RunningClients]:
            return [RunningClients(client, 1, "train", float(client)) for client in range(1000)]

    busy, counts = Busy(), ProgressCounts()
    counts.watch(busy)
    assert [work.first_client for work in counts.work()] == list(range(999, 991, -1))


def test_heartbeats_of_a_worker_tell_what_runs_there() -> None:
    held = Held(7)

    @fedstack.python_computation([np.int32], np.int32)
    def train(x: Any) -> Any:
        held.at(x)
        return x

    @fl.federated_computation(INTS)
    def train_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(train, values)

    heard: list[Heartbeat] = []
    told = threading.Event()

    class Listening(InMemoryConnection):
        async def exchange(self, path: str, parcel: Parcel) -> Any:
            async for piece in super().exchange(path, parcel):
                if isinstance(piece, Heartbeat) and any(7 in clients_of(work) for work in piece.work):
                    heard.append(piece)
                    told.set()
                yield piece

    limits = ServiceLimits(heartbeat_seconds=0.05)
    service = ExecutorService(fedstack.local_executor_factory(max_concurrent_clients=1), limits=limits)
    with SyncExecutionContext(fedstack.remote_executor_factory([ExecutorStub(Listening(service, "w"))])) as context:

        def call() -> None:
            with fedstack.use_context(context):
                train_all(list(range(8)))

        with running(call):
            assert told.wait(LIMIT)
            held.open.set()
    io_loop.run_sync(service.close())
    (work,) = heard[0].work
    assert work.function == "train"
    assert work.client == 7
    assert work.seconds > 0
    assert (heard[0].done, heard[0].running) == (8 - work.clients, work.clients)


class Hall:
    """Where clients with odd numbers wait until the test opens it."""

    def __init__(self) -> None:
        self.open = threading.Event()

        @fedstack.python_computation([np.int32], np.int32)
        def attend(x: Any) -> Any:
            if x % 2:
                assert self.open.wait(LIMIT)
            return x

        @fl.federated_computation(INTS)
        def attend_all(values: fl.Value) -> fl.Value:
            return fl.federated_map(attend, values)

        self.attend_all = attend_all


def until(look: Callable[[], bool], what: object) -> None:
    deadline = time.monotonic() + LIMIT
    while not look():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.002)


@contextlib.contextmanager
def over(stubs: list[ExecutorStub], progress: Progress, **options: Any) -> Iterator[SyncExecutionContext]:
    context = SyncExecutionContext(fedstack.remote_executor_factory(stubs), progress=progress, **options)
    with context, fedstack.use_context(context):
        yield context


def new_service(**options: Any) -> ExecutorService:
    limits = ServiceLimits(heartbeat_seconds=options.pop("heartbeat_seconds", 0.02))
    return ExecutorService(fedstack.local_executor_factory(max_concurrent_clients=1), limits=limits, **options)


def test_clients_done_and_running_at_several_workers_are_counted_together_while_they_run() -> None:
    hall, counts = Hall(), ProgressCounts()
    services = [new_service() for _ in range(2)]
    stubs = [ExecutorStub(InMemoryConnection(service, str(number))) for number, service in enumerate(services)]
    # Of six clients the second waits, at the first worker, and of the other six the last, at the second worker.
    numbers = [0, 1, 2, 2, 2, 2, 0, 2, 2, 2, 2, 1]

    def call() -> None:
        with over(stubs, lambda _: contextlib.nullcontext(counts)):
            assert hall.attend_all(numbers) == numbers

    with running(call):
        until(lambda: len(counts.work()) == 2 and counts.done >= 2 and counts.running >= 2, counts)
        assert {work.function for work in counts.work()} == {"attend"}
        assert any(1 in clients_of(work) for work in counts.work())
        assert (counts.total, counts.failures) == (12, 0)
        assert counts.done + counts.running <= 12
        hall.open.set()
    assert (counts.total, counts.done, counts.running, counts.failures) == (12, 12, 0, 0)
    assert counts.work() == []
    for service in services:
        io_loop.run_sync(service.close())


def test_a_worker_tells_news_before_a_heartbeat_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstack.service.executor.requests._LOOK_SECONDS", 0.02)
    hall, counts, service = Hall(), ProgressCounts(), new_service(heartbeat_seconds=3600)
    beats: list[Heartbeat] = []

    class Listening(InMemoryConnection):
        async def exchange(self, path: str, parcel: Parcel) -> Any:
            async for piece in super().exchange(path, parcel):
                if isinstance(piece, Heartbeat):
                    beats.append(piece)
                yield piece

    def call() -> None:
        with over([ExecutorStub(Listening(service, "w"))], lambda _: contextlib.nullcontext(counts)):
            hall.attend_all([0, 1])

    with running(call):
        until(lambda: (counts.done, counts.running) == (1, 1), counts)
        told = len(beats)
        threading.Event().wait(0.3)
        assert len(beats) == told  # nothing has changed since
        hall.open.set()
    io_loop.run_sync(service.close())


@pytest.mark.parametrize("place", ["here", "at a worker"])
def test_an_attempt_that_failed_does_not_count_in_the_next_one(place: str) -> None:
    attempts = 0
    heard: list[tuple[int, int, int, int]] = []

    class Listener:
        def changed(self, counts: ProgressCounts) -> None:
            heard.append((counts.total, counts.done, counts.running, counts.failures))

    @fedstack.python_computation([np.int32], np.int32)
    def lose(x: Any) -> Any:
        nonlocal attempts
        if x == 99:
            attempts += 1
            if attempts < 3:
                raise WorkerUnavailableError("lost")
        return x

    @fl.federated_computation(INTS)
    def lose_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(lose, values)

    counts = ProgressCounts(Listener())
    progress: Progress = lambda _: contextlib.nullcontext(counts)  # noqa: E731
    service = new_service()
    if place == "here":
        called(lose_all, list(range(100)), progress)()
    else:
        with over([ExecutorStub(InMemoryConnection(service, "w"))], progress):
            lose_all(list(range(100)))
    io_loop.run_sync(service.close())
    assert attempts == 3
    # Here, the whole attempt begins again; over workers, only the clients that were lost.
    assert heard.count((0, 0, 0, 0)) == (2 if place == "here" else 0)
    assert all(done + active + failed <= total <= 100 for total, done, active, failed in heard)
    assert (counts.total, counts.done, counts.running, counts.failures) == (100, 100, 0, 0)


def test_what_a_leaf_function_calls_does_not_count_among_the_clients_that_it_runs_for() -> None:
    @fedstack.python_computation([np.int32], np.int32)
    def outer(x: Any) -> Any:
        return np.int32(sum(double_all(list(range(10)))))

    @fl.federated_computation(INTS)
    def outer_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(outer, values)

    counts = ProgressCounts()
    service = new_service()
    with over([ExecutorStub(InMemoryConnection(service, "w"))], lambda _: contextlib.nullcontext(counts)):
        assert outer_all([0, 0, 0]) == [90, 90, 90]
    io_loop.run_sync(service.close())
    assert (counts.total, counts.done) == (3, 3)


plain_clients_may_go = threading.Event()


@fedstack.python_computation([np.int32], np.int32)
def go_on(x: np.int32) -> np.int32:
    assert plain_clients_may_go.wait(LIMIT)
    return x


@fl.federated_computation(INTS)
def go_on_all(values: fl.Value) -> fl.Value:
    return fl.federated_map(go_on, values)


def test_at_a_worker_that_knows_only_values_all_clients_run_until_all_are_done() -> None:
    counts, service = ProgressCounts(), new_service(extensions=False, policy=CarrierPolicy(modules=["*"]))

    def call() -> None:
        stub = ExecutorStub(InMemoryConnection(service, "w"), extensions=False)
        with over([stub], lambda _: contextlib.nullcontext(counts)):
            assert go_on_all([0, 1, 2]) == [0, 1, 2]

    with running(call):
        until(lambda: counts.running == 3, counts)
        assert (counts.total, counts.done) == (3, 0)
        plain_clients_may_go.set()
    assert (counts.total, counts.done, counts.running) == (3, 3, 0)
    io_loop.run_sync(service.close())


BEATS = st.builds(Heartbeat, *(st.integers(0, 12) | st.sampled_from([2**64 - 1]) for _ in range(3)))


@given(clients=st.integers(0, 10), beats=st.lists(BEATS, max_size=10), fails=st.booleans())
def test_whatever_a_worker_tells_no_client_is_counted_twice(clients: int, beats: list[Heartbeat], fails: bool) -> None:
    heard: list[tuple[int, int, int]] = [(0, 0, 0)]

    class Listener:
        def changed(self, counts: ProgressCounts) -> None:
            heard.append((counts.done, counts.running, counts.failures))

    counts = ProgressCounts(Listener())
    with contextlib.suppress(OSError), PhaseReport(counts, clients) as report:
        for beat in beats:
            report.heard(beat)
        if fails:
            raise OSError
    assert all(min(numbers) >= 0 and sum(numbers) <= clients for numbers in heard)
    assert all(before[0] <= after[0] for before, after in itertools.pairwise(heard))
    assert counts.running == 0
    if not fails:
        assert counts.done + counts.failures == clients


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
def test_a_progress_function_that_raises_is_told_of_once_and_called_no_more(
    progress: Progress,
    place: Callable[[Progress], contextlib.AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with place(progress):
        for _ in range(2):
            assert double_all(list(range(1000))) == list(range(0, 2000, 2))
    [record] = caplog.records
    message = r"The progress function '.*(fails_at|on_a_screen).*raised OSError: screen on fire; it is not .*\n  File "
    assert re.match(message, record.getMessage())
    assert record.exc_info is None


@pytest.mark.parametrize("progress", [lambda _: ProgressCounts(), lambda _: contextlib.nullcontext(3)])
def test_a_progress_function_that_gives_something_else_is_told_of_too(
    progress: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with in_this_process(progress):
        assert double_all([1]) == [2]
    [record] = caplog.records
    assert "<lambda>' raised " in record.getMessage()


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


def test_contexts_over_any_factory_take_true_for_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = threading.Event()

    class Told(Recorder):
        def show(self, snapshot: ProgressSnapshot) -> None:
            shown.set()

    def chosen(*_: object) -> Told:
        display = Told()
        display.seconds_before = 0.0
        return display

    @contextlib.contextmanager
    def show_at_once(computation: object) -> Iterator[ProgressCounts]:
        counts = ProgressCounts()
        with display("RunningClients", "clients", lambda: ProgressSnapshot(counts.done, counts.total), chosen):
            assert shown.wait(LIMIT)
            yield counts

    monkeypatch.setattr("fedstack.contexts.contexts.show_progress", show_at_once)
    for progress in (True, False, None):
        shown.clear()
        with SyncExecutionContext(fedstack.local_executor_factory(), progress=progress):
            assert double_all([1, 2]) == [2, 4]
        assert shown.is_set() == (progress is True)
    shown.clear()
    with SyncExecutionContext(fedstack.local_executor_factory(), progress=True, debug=True):
        double_all([1, 2])  # a bar would draw over the prompt of a debugger
    assert not shown.is_set()


def test_quick_work_shows_nothing_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with fedstack.use_context(fedstack.create_sync_local_execution_context(progress=True)):
        assert double_all([1, 2]) == [2, 4]
    assert terminal.getvalue() == ""
    assert threads_of_displays() == []


def test_a_display_shows_where_work_stands_until_it_ends() -> None:
    recorder, done = Recorder(), 0
    with display("RunningClients", "steps", lambda: ProgressSnapshot(done, 2), lambda *_: recorder):
        recorder.was_shown.wait()
        done = 2
    assert recorder.shown[0] == ProgressSnapshot(0, 2)
    assert recorder.closed == [ProgressSnapshot(2, 2)]
    assert threads_of_displays() == []


def test_a_display_is_closed_when_work_fails() -> None:
    recorder = Recorder()

    def work() -> None:
        with display("RunningClients", "steps", lambda: ProgressSnapshot(0, 2), lambda *_: recorder):
            recorder.was_shown.wait()
            raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        work()
    assert recorder.closed == [ProgressSnapshot(0, 2)]


def test_work_does_not_notice_that_its_display_fails() -> None:
    reached = threading.Event()

    class Broken(Recorder):
        def show(self, snapshot: ProgressSnapshot) -> None:
            reached.set()
            raise BrokenPipeError

    with display("RunningClients", "steps", lambda: ProgressSnapshot(0, 2), lambda *_: Broken()):
        reached.wait()


def test_work_does_not_notice_that_there_is_no_thread_for_its_display(thread_starts: ThreadStarts) -> None:
    with fedstack.use_context(fedstack.create_sync_local_execution_context(progress=True)):
        assert double_all([1, 2]) == [2, 4]


def test_work_does_not_notice_that_there_is_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with display("RunningClients", "steps", lambda: ProgressSnapshot(0, 2)):
        pass


def test_a_line_says_how_many_clients_are_done_failed_and_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, snapshots = io.StringIO(), list[Callable[[], ProgressSnapshot]]()
    monkeypatch.setattr(
        "fedstack.contexts.progress_display.display",
        lambda title, unit, snapshot: contextlib.nullcontext(snapshots.append(snapshot)),
    )
    monkeypatch.setattr(sys, "stderr", written)
    with show_progress(double) as counts:
        counts.expect(10)
        counts.started(4)
        counts.finished(2)
        counts.failed(1)
        LineDisplay("double", "clients").show(snapshots[0]())
        counts.elsewhere(lost=3, moved=12)
        counts.elsewhere(moved=1, twice=2)
        LineDisplay("double", "clients").show(snapshots[0]())
        counts.restart()
        LineDisplay("double", "clients").show(snapshots[0]())
    line = "double: 2 of 10 clients done, 1 running, 1 failed"
    assert written.getvalue() == (
        f"{line}\n{line}, 3 to run again, 13 moved, 2 run twice\ndouble: 0 of 0 clients done, 0 running\n"
    )


SHORT = RunningClients(9, 1, "evaluate", 0.1)
LONG = RunningClients(7, 1, "train", 8.4)
OF_BLOCK = RunningClients(12, 4, "train", 5.0, client=13)


@pytest.mark.parametrize(
    ("work", "note"),
    [
        ([LONG, SHORT], "train: 2 of 10 clients done, 2 running, client 7 for 8 s"),
        (
            [RunningClients(8, 8, "train", 75.0), SHORT],
            "train: 2 of 10 clients done, 4 running, clients 8 to 15 for 75 s",
        ),
        ([LONG, OF_BLOCK], "train: 2 of 10 clients done, 2 running, client 7 for 8 s, client 13 for 5 s"),
        (
            [LONG, OF_BLOCK, LONG, LONG],
            "train: 2 of 10 clients done, 4 running, client 7 for 8 s, client 7 for 8 s, and 2 more",
        ),
        ([RunningClients(0, 0, "update", 8.4), SHORT], "update: 2 of 10 clients done, 1 running, the server for 8 s"),
        ([RunningClients(7, 1, "train\x1b[2J", 0.4), SHORT], "train\\x1b[2J: 2 of 10 clients done, 2 running"),
    ],
)
def test_a_line_names_the_function_that_runs_and_who_has_run_for_long(
    work: list[RunningClients], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, shown = io.StringIO(), threading.Event()

    class Busy:
        def work(self) -> list[RunningClients]:
            return work

    class Lines(LineDisplay):
        def show(self, snapshot: ProgressSnapshot) -> None:
            super().show(snapshot)
            shown.set()

    monkeypatch.setattr(
        "fedstack.contexts.progress_display.display",
        lambda title, unit, snapshot: display(
            title, unit, snapshot, lambda *names: Lines(*names, seconds_between=0.01)
        ),
    )
    monkeypatch.setattr(sys, "stderr", written)
    busy = Busy()
    with show_progress(double_all) as counts:
        counts.expect(10)
        counts.started(6)
        counts.finished(2)
        counts.watch(busy)
        shown.clear()
        assert shown.wait(LIMIT)
    assert f"{note}\n" in written.getvalue()
    assert re.search(r"^.*: ended after \d+\.\d s with 2 of 10 clients done\n\Z", written.getvalue(), re.MULTILINE)


def test_a_bar_has_lines_below_it_where_the_terminal_can_draw_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    for encoding, is_there in (("utf-8", True), ("ascii", False)):
        terminal = use_terminal(monkeypatch)
        monkeypatch.setattr(Terminal, "encoding", encoding)
        bar = choose_display("training", "steps")
        bar.show(ProgressSnapshot(1, 4, below=f"[red]✗[/]{' wide' * 200}\nmore"))
        bar.close(ProgressSnapshot(4, 4))
        assert ("✗" in terminal.getvalue(), "more" in terminal.getvalue()) == (is_there, is_there)
        assert terminal.getvalue().count("wide") < 200  # lines are cut, and not broken
        assert "1 of 4 steps" in terminal.getvalue()


def test_a_bar_is_named_by_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    bar = choose_display("[red]computation", "steps")
    bar.show(ProgressSnapshot(1, 4))
    assert "[red]computation" in terminal.getvalue()
    bar.show(ProgressSnapshot(1, 4, title="[red]train"))
    assert "[red]train" in terminal.getvalue()
    bar.close(ProgressSnapshot(4, 4))


def test_a_line_display_waits_for_seconds_before_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineDisplay("RunningClients", "steps", seconds_between=5)
    assert (lines.seconds_before, lines.seconds_between) == (5, 5)
    lines.close(ProgressSnapshot(1, 2))
    assert capsys.readouterr().err.endswith("s with 1 of 2 steps done\n")


def test_progress_is_lines_where_standard_error_is_no_terminal() -> None:
    assert isinstance(choose_display("RunningClients", "steps"), LineDisplay)


def test_progress_is_lines_in_a_terminal_that_cannot_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, "dumb")
    assert isinstance(choose_display("RunningClients", "steps"), LineDisplay)


def test_progress_is_lines_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    monkeypatch.delitem(sys.modules, "fedstack.contexts.rich_display", raising=False)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert isinstance(choose_display("RunningClients", "steps"), LineDisplay)


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    bar = choose_display("RunningClients", "steps")
    bar.show(ProgressSnapshot(1, 4, "so far so good"))
    assert "RunningClients" in terminal.getvalue()
    assert "1 of 4 steps" in terminal.getvalue()
    assert "so far so good" in terminal.getvalue()
    bar.close(ProgressSnapshot(4, 4))
    erase_line = "\x1b[2K"
    assert erase_line in terminal.getvalue().rpartition("so far so good")[2]


def test_a_bar_has_no_colours_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    bar = choose_display("RunningClients", "steps")
    bar.show(ProgressSnapshot(1, 4))
    bar.close(ProgressSnapshot(4, 4))
    assert "1 of 4 steps" in terminal.getvalue()
    assert "\x1b[3" not in terminal.getvalue()


def test_bars_of_several_invocations_share_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    first, second = choose_display("First", "steps"), choose_display("Second", "steps")
    first.show(ProgressSnapshot(1, 4))
    second.show(ProgressSnapshot(0, 0))
    first.close(ProgressSnapshot(4, 4))
    second.show(ProgressSnapshot(2, 3))
    assert "2 of 3 steps" in terminal.getvalue()
    second.close(ProgressSnapshot(3, 3))


def test_what_is_printed_while_a_bar_is_shown_goes_where_it_always_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    terminal = use_terminal(monkeypatch)
    bar = choose_display("RunningClients", "steps")
    bar.show(ProgressSnapshot(1, 4))
    print("a result")
    bar.close(ProgressSnapshot(4, 4))
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in terminal.getvalue()


def test_what_a_forked_child_prints_goes_past_the_bar_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    rich_display = pytest.importorskip("fedstack.contexts.rich_display")
    terminal = use_terminal(monkeypatch)
    bars = rich_display._LiveBars()
    bars.add("RunningClients", "steps")
    live = bars._progress
    assert sys.stderr is not terminal
    bars.renew()
    assert sys.stderr is terminal
    live.stop()
