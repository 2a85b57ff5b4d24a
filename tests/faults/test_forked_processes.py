"""Processes that fork: gRPC does not survive that, and what uses it says so; all else goes on."""

import asyncio
import os
import threading

import pytest
from processes import Fleet

from fedstack.errors import ClosedError
from fedstack.executors.leaf_threads import LeafThreads
from fedstack.executors.sync_driver import SyncDriver
from fedstack.transport.forks import GrpcUse

WALL = 30.0


def test_in_the_child_remote_contexts_name_the_fork_and_local_ones_go_on(fleet: Fleet) -> None:
    client = fleet.start_client("fork_after_rounds", target=fleet.start().target)
    child, parent = client.listen()["answer"]
    for inherited_or_new in child[:2]:
        assert inherited_or_new.startswith(
            f"ClosedError: Expected a process that may use gRPC, found one forked (os.fork) from process {client.pid}"
        )
        assert "multiprocessing's 'spawn'" in inherited_or_new
    assert child[2:] == parent[2:]
    assert len(set(parent)) == 1


def test_a_child_may_dial_if_its_parent_has_not(fleet: Fleet) -> None:
    here, at_the_worker = fleet.start_client("fork_before_rounds", target=fleet.start().target).listen()["answer"]
    assert here == at_the_worker


def test_the_use_of_grpc_is_refused_to_copies_of_a_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    use = GrpcUse()
    use.check()
    use.begin()
    use.begin()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ClosedError, match="forked"):
        use.begin()


def test_threads_and_loops_of_another_process_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, driver = LeafThreads(1), SyncDriver()
    busy, release = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        release.wait(WALL)

    async def nothing() -> int:
        await asyncio.sleep(0)
        return 1

    waiting = threads.submit(work)
    assert busy.wait(WALL)
    assert driver.run(nothing(), inline=False) == 1
    theirs = driver._loop
    assert theirs is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert threads.submit(lambda: 2).result(WALL) == 2
        assert driver.run(nothing(), inline=False) == 1
        assert driver._loop is not theirs
        driver.close()
        threads.close()
    release.set()
    waiting.result(WALL)
    theirs.call_soon_threadsafe(theirs.stop)
