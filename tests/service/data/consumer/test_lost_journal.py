"""Consumers of a dispatcher whose journal is not what it was."""

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from await_until import await_until
from free_ports import free_port

from fedstack.errors import StaleSessionError
from fedstack.service.data import Dataset, DispatcherConfig, DispatchServer, WorkerConfig, WorkerServer, distribute
from fedstack.service.data.dispatcher.journal import LAST

SIZE = 6000


def number_in(folder: Path) -> int:
    """Returns the number of the last commit of a journal: more than its consumers have heard of, if it was busy."""
    with contextlib.closing(sqlite3.connect(folder / "journal.sqlite")) as tables:
        return int(tables.execute("SELECT number FROM head").fetchone()[0])


def test_an_older_journal_is_refused_by_those_who_read_on_and_those_who_resume(tmp_path: Path) -> None:
    port = free_port()

    def serve(folder: Path) -> DispatchServer:
        return DispatchServer(DispatcherConfig(port=port, work_dir=folder, fault_tolerant_mode=True))

    def elements(cursor: bytes | None = None) -> Dataset:
        exactly = distribute("distributed_epoch", f"localhost:{port}", guarantee="exactly_once", resume=cursor)
        return Dataset.range(SIZE).apply(exactly)

    here, older = tmp_path / "here", tmp_path / "older"
    with WorkerServer(WorkerConfig(f"localhost:{port}")):
        with serve(here):
            reading = iter(elements())
            had = [int(next(reading))]
            driver = reading._passes._driver
            assert driver is not None
            shutil.copytree(here, older, ignore=shutil.ignore_patterns(LAST))  # which may be ahead of the copy
            copied = number_in(shutil.copytree(older, tmp_path / "looked at"))
            had += [int(next(reading)) for _ in range(SIZE // 2)]
            await_until(lambda: driver.commit.number > copied)  # a take was answered since
            cursor = reading.cursor()
        with serve(older):
            with pytest.raises(StaleSessionError, match=r"has lost commits.*restore the latest copy of its work_dir"):
                list(reading)
            with pytest.raises(StaleSessionError, match="has lost commits"):
                list(elements(cursor))
            assert sorted(map(int, elements())) == list(range(SIZE)), "a new pass begins"
        with serve(here):
            rest = list(map(int, elements(cursor)))
    assert sorted(had + rest) == list(range(SIZE)), "the latest journal is as good as before"
