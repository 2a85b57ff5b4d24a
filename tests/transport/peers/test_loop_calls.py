"""What other threads ask of a loop is done there, all of it and in order, however many ask and whatever ends them."""

import asyncio
import functools
import gc
import threading
import weakref

import pytest

from fedstack.transport.peers.io_loop import calls_on

THREADS, CALLS = 4, 500


async def test_the_calls_of_many_threads_are_all_made_each_threads_in_their_order():
    loop, made, all_made = asyncio.get_running_loop(), [], asyncio.Event()

    def note(found: tuple[int, int]) -> None:
        made.append(found)
        if len(made) == THREADS * CALLS:
            all_made.set()

    def ask(thread: int) -> None:
        for number in range(CALLS):
            calls_on(loop).add(functools.partial(note, (thread, number)))

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(all_made.wait(), 60)
    for thread in range(THREADS):
        assert [number for found, number in made if found == thread] == list(range(CALLS))
    for thread in threads:
        thread.join()


async def test_many_calls_that_come_at_once_wake_the_loop_once(monkeypatch):
    loop, woken, made = asyncio.get_running_loop(), [], []
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *of: woken.append(of) or wake(*of))
    for number in range(10):
        calls_on(loop).add(functools.partial(made.append, number))
    await asyncio.sleep(0)
    assert made == list(range(10))
    assert len(woken) == 1
    calls_on(loop).add(lambda: made.append(10))
    await asyncio.sleep(0)
    assert made[-1] == 10
    assert len(woken) == 2


async def test_a_call_that_is_interrupted_does_not_keep_others_from_waking_the_loop(monkeypatch):
    loop, made = asyncio.get_running_loop(), []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calls_on(loop).add(lambda: made.append(1))
    calls_on(loop).add(lambda: made.append(2))
    await asyncio.sleep(0)
    assert made == [1, 2]


def test_a_closed_loop_says_so_each_time():
    loop = asyncio.new_event_loop()
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            calls_on(loop).add(lambda: None)


def test_a_loop_that_nobody_has_any_more_is_not_kept():
    loop = asyncio.new_event_loop()
    calls_on(loop).add(lambda: None)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
