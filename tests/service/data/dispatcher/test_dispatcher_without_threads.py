"""A dispatcher on simulated time, whose disk does what the test says."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from dispatching import AT_LEAST_ONCE, DYNAMIC, description, splits

from fedstack.errors import JournalError, ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import without_threads
from fedstack.proto import data_service_pb2 as messages
from fedstack.service.data.dispatcher.dispatch_service import DispatchService, Times
from fedstack.service.data.dispatcher.journal import Journal
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.testing.simulation.virtual_loop import VirtualLoop
from fedstack.transport.peers.dispatcher_stub import DispatcherStub

HOUR = 3600.0


class BadDisk:
    """Tables that fail when they are to be written, as long as there is an error."""

    def __init__(self, tables: sqlite3.Connection) -> None:
        self._tables = tables
        self.error: sqlite3.Error | None = None

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self.error is not None and statement == "COMMIT":
            raise self.error
        return self._tables.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


class Simulated:
    """A dispatcher, and a stub of it, on the loop that runs."""

    def __init__(self, folder: Path | None = None) -> None:
        loop = asyncio.get_running_loop()
        journal = Journal(folder)
        self.disk = BadDisk(journal._tables)
        journal._tables = journal._ledger._tables = self.disk  # type: ignore[assignment]
        self.stood_still = 0.0
        self.service = DispatchService(
            journal,
            times=Times(worker=HOUR, consumer=HOUR),
            clock=lambda: loop.time() + self.stood_still,
            wall_clock=loop.time,
        )
        self.service.started()
        self.stub = DispatcherStub(InMemoryConnection(self.service))

    async def register(self, num_splits: int = 10) -> bytes:
        dataset = description(num_splits=num_splits)
        request = messages.RegisterDatasetRequest(dataset=dataset)
        return (await self.stub.register(request, memoryview(b"a definition"))).digest

    async def open(self, digest: bytes, consumer: bytes) -> messages.TakeRequest:
        request = messages.OpenPassRequest(
            digest=digest, consumer=consumer, policy=DYNAMIC, guarantee=AT_LEAST_ONCE, job_name="shared"
        )
        opened = await self.stub.open_pass(request)
        return messages.TakeRequest(
            pass_id=opened.pass_id, consumer=consumer, number=opened.next_number, want=100, wait_seconds=60.0
        )


@pytest.fixture
def simulate() -> Generator[Callable[[Callable[[], Awaitable[None]]], None], None, None]:
    loop = VirtualLoop()

    def run(program: Callable[[], Awaitable[None]]) -> None:
        with without_threads():
            loop.run_until_complete(program())

    yield run
    loop.close()


def test_who_waits_gets_what_a_lost_consumer_leaves_after_its_lease(simulate) -> None:
    async def program() -> None:
        simulated = Simulated()
        digest = await simulated.register()
        loop = asyncio.get_running_loop()
        lost = await simulated.stub.take(await simulated.open(digest, b"lost"))
        assert splits(lost.range) == list(range(10))
        began = loop.time()
        waiting = await simulated.open(digest, b"waiting")
        while not (answer := await simulated.stub.take(waiting)).range:
            assert not answer.is_exhausted
            waiting.workers_version = answer.workers_version
            waiting.number += 1
        assert splits(answer.range) == list(range(10))
        assert HOUR <= loop.time() - began < HOUR + 1
        await simulated.service.close()

    simulate(program)


def test_a_dispatcher_that_stood_still_takes_nobody_for_lost(simulate) -> None:
    async def program() -> None:
        simulated = Simulated()
        digest = await simulated.register()
        worker = messages.DataWorkerAddress(worker=b"w", address="w:1")
        await simulated.stub.attend(messages.AttendRequest(worker=worker))
        take = await simulated.open(digest, b"a")
        take.wait_seconds = 0.0
        await simulated.stub.take(take)
        await asyncio.sleep(HOUR / 2)
        simulated.stood_still = 10 * HOUR
        await asyncio.sleep(HOUR)
        take.number += 1
        assert (await simulated.stub.take(take)).is_exhausted
        assert len((await simulated.stub.list_workers()).worker) == 1
        await asyncio.sleep(HOUR)
        assert not (await simulated.stub.list_workers()).worker
        await simulated.service.close()

    simulate(program)


def test_a_consumer_is_lost_also_when_the_disk_failed_at_first(simulate, tmp_path: Path) -> None:
    async def program() -> None:
        simulated = Simulated(tmp_path)
        digest = await simulated.register()
        await simulated.stub.take(await simulated.open(digest, b"lost"))
        simulated.disk.error = sqlite3.OperationalError("database or disk is full")
        await asyncio.sleep(HOUR + 1)
        simulated.disk.error = None
        answer = await simulated.stub.take(await simulated.open(digest, b"other"))
        assert not answer.range
        await asyncio.sleep(HOUR + 1)
        answer = await simulated.stub.take(await simulated.open(digest, b"another"))
        assert splits(answer.range) == list(range(10))
        await simulated.service.close()

    simulate(program)


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (sqlite3.OperationalError("database or disk is full"), ResourceLimitError),
        (sqlite3.OperationalError("disk I/O error"), JournalError),
    ],
    ids=str,
)
def test_a_disk_that_fails_costs_the_request_and_nothing_else(simulate, tmp_path: Path, error, known) -> None:
    async def program() -> None:
        simulated = Simulated(tmp_path)
        digest = await simulated.register()
        take = await simulated.open(digest, b"a")
        simulated.disk.error = error
        for call in (simulated.stub.take(take), simulated.open(digest, b"b"), simulated.register(11)):
            with pytest.raises((known, ValueError)):
                await call
        with pytest.raises(known):
            await simulated.stub.take(take)
        simulated.disk.error = None
        answer = await simulated.stub.take(take)
        assert splits(answer.range) == list(range(10))
        assert answer == await simulated.stub.take(take)
        await simulated.service.close()

    simulate(program)
