"""Driving coroutines from synchronous code."""

import asyncio
import signal
import threading

import pytest

from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency import sync_driver
from fedstack.executors.concurrency.coroutines import need_event_loop
from fedstack.executors.concurrency.sync_driver import SyncDriver

WALL = 20.0


@pytest.fixture
def driver():
    made = SyncDriver()
    yield made
    made.close()


async def thread_without_loop():
    return threading.get_ident()


async def threads_before_and_after_asking_for_a_loop():
    before = threading.get_ident()
    await need_event_loop()
    asyncio.get_running_loop()
    await asyncio.sleep(0)
    return before, threading.get_ident()


def test_a_coroutine_runs_on_the_callers_thread(driver):
    assert driver.run(thread_without_loop(), inline=True) == threading.get_ident()


def test_a_coroutine_that_asks_for_a_loop_goes_on_elsewhere_from_where_it_stood(driver):
    before, after = driver.run(threads_before_and_after_asking_for_a_loop(), inline=True)
    assert before == threading.get_ident() != after


def test_a_coroutine_runs_on_the_loop_thread_when_it_may_not_begin_inline(driver):
    assert driver.run(thread_without_loop(), inline=False) != threading.get_ident()


def test_exceptions_pass_through_before_and_after_the_move(driver):
    async def fail(move):
        if move:
            await need_event_loop()
            await asyncio.sleep(0)
        raise KeyError("mine")

    for move in (False, True):
        with pytest.raises(KeyError, match="mine"):
            driver.run(fail(move), inline=True)


def test_an_exception_inside_the_moved_part_can_be_handled_there(driver):
    async def handle():
        await need_event_loop()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except asyncio.TimeoutError:
            return "handled"

    assert driver.run(handle(), inline=True) == "handled"


def test_without_a_loop_everything_stays_on_the_callers_thread():
    driver = SyncDriver(allow_loop=False)

    async def ask():
        await need_event_loop()
        return threading.get_ident()

    assert driver.run(ask(), inline=True) == threading.get_ident()


def test_it_works_under_a_running_event_loop(driver):
    async def notebook_cell():
        return driver.run(threads_before_and_after_asking_for_a_loop(), inline=True)

    before, after = asyncio.run(notebook_cell())
    assert before == threading.get_ident() != after


def test_context_variables_are_seen_after_the_move(driver):
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")

    async def read():
        await need_event_loop()
        return variable.get()

    variable.set("set")
    assert driver.run(read(), inline=True) == "set"


def test_awaiting_something_without_a_loop_is_a_clear_error(driver):
    async def wrong():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="Expected a request for an event loop"):
        driver.run(wrong(), inline=True)


def test_close_is_idempotent_and_a_closed_driver_starts_a_new_loop():
    driver = SyncDriver()
    driver.run(thread_without_loop(), inline=False)
    driver.close()
    driver.close()
    assert driver.run(thread_without_loop(), inline=False)
    driver.close()


@pytest.mark.parametrize("inline", [True, False])
def test_a_driver_whose_loop_cannot_be_started_says_so_and_works_when_there_is_room_again(
    driver, thread_starts, inline
):
    for _ in range(2):
        with pytest.raises(ResourceLimitError, match="start another thread"):
            driver.run(threads_before_and_after_asking_for_a_loop(), inline=inline)
    thread_starts.left = 1
    _, after = driver.run(threads_before_and_after_asking_for_a_loop(), inline=inline)
    assert after != threading.get_ident()


@pytest.mark.parametrize("waited", [WALL, 0.0])
def test_work_that_ctrl_c_ends_is_cancelled_to_its_end_even_if_the_driver_is_closed(monkeypatch, waited):
    monkeypatch.setattr(sync_driver, "_CANCEL_SECONDS", waited)
    caller, ended = threading.get_ident(), threading.Event()

    async def work():
        await need_event_loop()
        signal.pthread_kill(caller, signal.SIGINT)
        try:
            await asyncio.sleep(WALL)
        finally:
            await asyncio.sleep(0.05)  # as when a session at a worker is closed
            ended.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    driver = SyncDriver()
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.run(work(), inline=True)
    finally:
        signal.signal(signal.SIGINT, before)
        driver.close()
    assert ended.wait(0.0 if waited else WALL)
