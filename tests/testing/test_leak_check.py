"""What counts as left behind."""

import asyncio
import gc
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fedstack.executors import LeafExecutor
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.testing.leak_check import LeakCheck
from fedstack.testing.leaves import double

pytestmark = pytest.mark.fedstack_leak_check(False)  # checks cannot be nested


def test_nothing_new_is_no_leak() -> None:
    assert LeakCheck().finish() == []


def test_what_was_there_before_is_no_leak() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert LeakCheck().finish() == []
    end.set()
    thread.join()


def test_a_thread_that_stays_is_a_leak() -> None:
    check = LeakCheck()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="the one that stays")
    thread.start()
    assert "thread 'the one that stays'" in check.finish(grace_seconds=0.0)
    end.set()
    thread.join()


def test_a_thread_that_is_about_to_end_is_none() -> None:
    check = LeakCheck()
    end = threading.Event()
    threading.Thread(target=end.wait).start()
    threading.Timer(0.05, end.set).start()
    assert check.finish() == []


def test_a_thread_that_waits_in_a_pool_that_was_there_is_none_and_one_of_a_new_pool_is() -> None:
    before = LeafThreads(idle_seconds=60.0)
    check = LeakCheck()
    before.submit(lambda: None).result()
    assert check.finish() == []
    check = LeakCheck()
    new = LeafThreads(idle_seconds=60.0)
    new.submit(lambda: None).result()
    assert [line[:18] for line in check.finish(0.05)] == ["thread 'fedstack-l"]
    busy = threading.Event()
    check = LeakCheck()
    before.submit(lambda: busy.wait(60))
    new.submit(lambda: busy.wait(60))
    assert check.finish(0.05) == []  # at work, and none of them is new
    busy.set()
    before.close()
    new.close()


def test_an_open_file_is_a_leak_where_the_system_lists_them(tmp_path: Path) -> None:
    check = LeakCheck()
    with (tmp_path / "left.txt").open("w"):
        found = check.finish(grace_seconds=0.0)
    if Path("/proc/self/fd").is_dir():
        # Threads of libraries that earlier tests woke may open something of their own just then.
        (leak,) = [line for line in found if line.endswith("left.txt)")]
        assert leak.startswith("file descriptor ")
    assert LeakCheck().finish() == []


def test_a_file_of_an_installed_package_is_none() -> None:
    check = LeakCheck()
    with Path(pytest.__file__).open():
        assert check.finish() == []


def test_a_file_of_an_installed_package_is_none_either_where_a_link_leads_to_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "link").symlink_to("environment")
    (tmp_path / "link" / "font").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "link"))
    check = LeakCheck()
    with open(tmp_path / "link" / "font"):
        assert check.finish(grace_seconds=0.0) == []


async def test_a_task_that_is_not_done_is_a_leak() -> None:
    check = LeakCheck()
    task = asyncio.create_task(asyncio.Event().wait(), name="never done")
    (leak,) = [line for line in check.finish(grace_seconds=0.0) if "never done" in line]
    assert leak.startswith("asyncio task")
    task.cancel()
    check = LeakCheck()
    await asyncio.wait([task])
    assert check.finish() == []


async def test_a_value_that_somebody_keeps_is_a_leak() -> None:
    executor = LeafExecutor()
    check = LeakCheck()
    value = await executor.create_value(3, np.int32)
    assert "value <KnownValue of type int32>" in check.finish(grace_seconds=0.0)
    check = LeakCheck()
    called = await executor.create_call(await executor.create_value(double), value)
    assert await called.compute() == 6
    del called
    executor.close()
    assert check.finish() == []


def test_a_value_in_a_cycle_that_nobody_keeps_is_none() -> None:
    async def make() -> None:
        executor = LeafExecutor()
        executor.favourite = await executor.create_value(3, np.int32)
        executor.close()

    gc.disable()
    try:
        check = LeakCheck()
        asyncio.run(make())
        assert check.finish() == []
    finally:
        gc.enable()


def test_the_garbage_collector_is_left_as_it_was() -> None:
    before = gc.get_freeze_count()
    LeakCheck().finish()
    assert gc.get_freeze_count() == before
