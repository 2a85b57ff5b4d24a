"""Observers: how they are told, and what becomes of those that raise, block, leave or are forked."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from fedstack.observe import Event, Observer, WorkerReady, add_observer
from fedstack.observe import observers as module
from fedstack.observe.observers import observers
from tests.await_until import await_until

LIMIT = 15.0


class Diary(Observer):
    """Writes down the workers that it is told of."""

    def __init__(self) -> None:
        self.workers: list[str] = []
        self.threads: set[threading.Thread] = set()

    def observe(self, event: Event) -> None:
        assert isinstance(event, WorkerReady)
        self.threads.add(threading.current_thread())
        self.workers.append(event.worker)


def happens(*workers: str) -> None:
    for worker in workers:
        if observers.present:
            observers.tell(WorkerReady(worker=worker))


def test_nobody_is_there_until_an_observer_is_added() -> None:
    assert observers.present == ()
    with add_observer(Diary()):
        assert len(observers.present) == 1
    assert observers.present == ()


def test_an_observer_hears_in_order_what_happens_until_it_is_removed_on_a_thread_of_its_own() -> None:
    diary = Diary()
    happens("before")
    with add_observer(diary):
        happens("a", "b", "c")
    happens("after")
    assert diary.workers == ["a", "b", "c"]
    assert threading.current_thread() not in diary.threads
    assert len(diary.threads) == 1


def test_a_direct_observer_is_told_where_things_happen() -> None:
    diary = Diary()
    with add_observer(diary, direct=True):
        happens("a")
        assert diary.workers == ["a"]
    assert diary.threads == {threading.current_thread()}


def test_an_event_says_when_it_happened_and_cannot_be_changed() -> None:
    event = WorkerReady(worker="a")
    assert event.time > 1.6e9
    with pytest.raises(AttributeError):
        event.worker = "b"  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(event, "__dict__")


def test_two_observers_hear_the_same_and_leave_one_by_one() -> None:
    first, second = Diary(), Diary()
    with add_observer(second):
        with add_observer(first):
            happens("a")
        happens("b")
    assert (first.workers, second.workers) == (["a"], ["a", "b"])


def test_removing_twice_is_removing_once() -> None:
    subscription = add_observer(Diary())
    subscription.remove()
    subscription.remove()
    assert repr(subscription) == "<Subscription of Diary, removed>"


class Refusal(Exception):
    """Refers to something, so that a test sees when it goes."""


class Kept:
    """What a frame of an observer has."""


def test_the_end_of_a_process_waits_for_the_warning_of_an_observer_that_raises() -> None:
    class Raises(Observer):
        def observe(self, event: Event) -> None:
            raise ValueError("no")

    begun, said = threading.Event(), []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            begun.set()
            threading.Event().wait(0.2)
            said.append(record.getMessage())

    handler = Slow()
    module._logger.addHandler(handler)
    try:
        add_observer(Raises())
        happens("a")
        assert begun.wait(LIMIT)
        observers.flush()
    finally:
        module._logger.removeHandler(handler)
    (message,) = said
    assert message.startswith("The observer Raises raised ValueError: no")


@pytest.mark.parametrize("direct", [False, True], ids=["apart", "direct"])
def test_an_observer_that_raises_is_told_of_once_and_hears_nothing_more(
    direct: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[weakref.ref[Kept]] = []

    class Broken(Observer):
        def observe(self, event: Event) -> None:
            big = Kept()
            kept.append(weakref.ref(big))
            raise Refusal("the disk is full")

    diary, subscription = Diary(), add_observer(Broken(), direct=direct)
    with add_observer(diary), subscription:
        happens("a", "b", "c")
    assert diary.workers == ["a", "b", "c"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert "The observer Broken raised Refusal: the disk is full; the observer was removed" in message
    assert 'raise Refusal("the disk is full")' in message
    assert not record.exc_info
    gc.collect()
    assert [found() for found in kept] == [None]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_observer_on_a_thread_of_its_own_cannot_end_that_without_a_word(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Ending(Observer):
        def observe(self, event: Event) -> None:
            raise kind

    with add_observer(Ending()):
        happens("a", "b")
    (record,) = caplog.records
    assert f"The observer Ending raised {kind.__name__}" in record.getMessage()


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, GeneratorExit])
def test_a_direct_observer_cannot_end_the_work_that_it_watches(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Ending(Observer):
        def observe(self, event: Event) -> None:
            raise kind

    with add_observer(Ending(), direct=True):
        happens("a", "b")
    (record,) = caplog.records
    assert f"The observer Ending raised {kind.__name__}" in record.getMessage()


def test_what_comes_over_a_direct_observer_goes_on() -> None:
    def stop(*_: object) -> None:
        raise SystemExit("stopped")

    class Waiting(Diary):
        def observe(self, event: Event) -> None:
            super().observe(event)
            signal.raise_signal(signal.SIGINT if self.workers == ["a"] else signal.SIGTERM)

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: stop}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    waiting = Waiting()
    try:
        with add_observer(waiting, direct=True):
            with pytest.raises(KeyboardInterrupt):
                happens("a")
            with pytest.raises(SystemExit, match="stopped"):
                happens("b")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert waiting.workers == ["a", "b"]


def test_an_observer_that_blocks_costs_only_events_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    begun, gate = threading.Event(), threading.Event()

    class Slow(Diary):
        def observe(self, event: Event) -> None:
            begun.set()
            assert gate.wait(LIMIT)
            super().observe(event)

    slow, diary = Slow(), Diary()
    with add_observer(slow) as subscription, add_observer(diary):
        happens("a")
        assert begun.wait(LIMIT)
        diary_has = [lambda worker=worker: worker in diary.workers for worker in "abcdef"]
        for worker, is_there in zip("bcdef", diary_has[1:]):
            happens(worker)
            while not is_there():
                threading.Event().wait(0.001)
        assert subscription.dropped == 2
        gate.set()
    assert slow.workers == ["a", "b", "c", "d"]
    assert diary.workers == list("abcdef")
    assert [record.getMessage() for record in caplog.records] == [
        "The queue of the observer Slow is full with 3 events; the observer misses events until it catches up"
    ]


def test_to_remove_an_observer_that_hangs_takes_as_long_as_one_waits() -> None:
    begun, gate = threading.Event(), threading.Event()

    class Hung(Observer):
        def observe(self, event: Event) -> None:
            begun.set()
            gate.wait(LIMIT)

    subscription = add_observer(Hung())
    happens("a")
    assert begun.wait(LIMIT)
    subscription.remove(0.01)
    assert observers.present == ()
    gate.set()


@pytest.mark.parametrize("direct", [False, True], ids=["apart", "direct"])
def test_an_observer_may_remove_itself_while_it_is_told(direct: bool) -> None:
    class Once(Diary):
        def observe(self, event: Event) -> None:
            super().observe(event)
            subscription.remove()

    once, diary = Once(), Diary()
    with add_observer(diary):
        subscription = add_observer(once, direct=direct)
        happens("a", "b")
    subscription.remove()
    assert once.workers == ["a"]
    assert diary.workers == ["a", "b"]


class Awaited(Observer):
    """Would never be told anything."""

    async def observe(self, event: Event) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


def test_what_is_no_observer_is_refused() -> None:
    with pytest.raises(
        TypeError, match="Expected an observer with a method 'observe', found <class.*; pass an instance"
    ):
        add_observer(Diary)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="found 3; derive its class from fedstack.observe.Observer"):
        add_observer(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="found <.*Awaited object.*; define the method without"):
        add_observer(Awaited())
    assert observers.present == ()


IN_A_CHILD = """
import os
from fedstack.observe import Observer, WorkerReady, add_observer
from fedstack.observe.observers import observers
class Printer(Observer):
    def __init__(self, name):
        self.name = name
    def observe(self, event):
        print(self.name, "hears of", event.worker, flush=True)
subscription = add_observer(Printer("parent"))
child = os.fork()
if not child:
    assert not observers.present
    with add_observer(Printer("child")):
        observers.tell(WorkerReady(worker="a"))
    subscription.remove()  # its thread is the parent's
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
observers.tell(WorkerReady(worker="b"))
subscription.remove()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_no_observers_and_may_have_its_own() -> None:
    found = subprocess.run([sys.executable, "-c", IN_A_CHILD], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.splitlines() == ["child hears of a", "parent hears of b"]


def test_what_has_not_been_told_is_told_when_the_process_ends() -> None:
    program = """
import threading, time
from fedstack.observe import Observer, WorkerReady, add_observer
from fedstack.observe.observers import observers
from tests.await_until import await_until
gate = threading.Event()
class Printer(Observer):
    def observe(self, event):
        gate.wait(15)
        print(event.worker, flush=True)
add_observer(Printer())
for worker in "abc":
    observers.tell(WorkerReady(worker=worker))
gate.set()
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["a", "b", "c"]
    assert not found.stderr


class Closing(Diary):
    """Counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        assert self.workers != ["bad"], "of a"


@pytest.mark.parametrize("direct", [False, True])
def test_an_observer_is_closed_once_when_it_has_heard_all(direct: bool) -> None:
    observer = Closing()
    with add_observer(observer, direct=direct) as subscription:
        happens("a", "b")
        assert observer.closed == 0
    subscription.remove()
    assert (observer.workers, observer.closed) == (["a", "b"], 1)


class Failing(Closing):
    """Raises at the first event."""

    def observe(self, event: Event) -> None:
        raise ValueError("of an observer")


@pytest.mark.parametrize("direct", [False, True])
def test_an_observer_that_raises_is_closed_once_although_nobody_removes_it(direct: bool) -> None:
    observer = Failing()
    subscription = add_observer(observer, direct=direct)
    happens("a")
    await_until(lambda: observer.closed == 1)
    subscription.remove()
    assert observer.closed == 1


@pytest.mark.parametrize("direct", [False, True])
def test_an_observer_that_raises_when_it_is_closed_is_warned_of(direct: bool, caplog: pytest.LogCaptureFixture) -> None:
    with add_observer(Closing(), direct=direct):
        happens("bad")
    [record] = caplog.records
    assert record.getMessage().startswith("Closing the observer Closing raised AssertionError: of a")
