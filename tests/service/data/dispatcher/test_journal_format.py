"""What is in the file of a journal: a release of the same version reads what another one has written."""

import contextlib
import sqlite3
from pathlib import Path

from direct_passes import Direct
from dispatching import EXACTLY_ONCE, description

from fedstack.proto.data_service_pb2 import Commit, OpenPassRequest
from fedstack.service.data.dispatcher.journal import FILE, Journal
from fedstack.service.data.dispatcher.ledger import Standing

# Where this has to change, the version of journals has to as well: those that there are are refused then.
WRITTEN = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA application_id = 0x66734444;
PRAGMA user_version = 2;
CREATE TABLE head (number INTEGER NOT NULL, digest BLOB NOT NULL);
CREATE TABLE branches (first INTEGER PRIMARY KEY, id BLOB NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE datasets (digest BLOB PRIMARY KEY, description BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE names (dataset_id TEXT PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE workers (worker BLOB PRIMARY KEY, address TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE passes (
      pass BLOB PRIMARY KEY, job TEXT NOT NULL, owner BLOB NOT NULL, repetition INTEGER NOT NULL, digest BLOB NOT NULL,
      policy INTEGER NOT NULL, guarantee INTEGER NOT NULL, target TEXT NOT NULL, num_splits INTEGER NOT NULL,
      is_whole INTEGER NOT NULL, next_range INTEGER NOT NULL, is_sealed INTEGER NOT NULL, idle_since REAL,
      UNIQUE (job, owner, repetition)) WITHOUT ROWID;
CREATE TABLE lists (pass BLOB, worker BLOB, next INTEGER NOT NULL, last INTEGER NOT NULL,
      PRIMARY KEY (pass, worker)) WITHOUT ROWID;
CREATE TABLE consumers (pass BLOB, consumer BLOB, is_here INTEGER NOT NULL, number INTEGER NOT NULL,
      answer BLOB, opening BLOB NOT NULL, PRIMARY KEY (pass, consumer)) WITHOUT ROWID;
CREATE TABLE ranges (pass BLOB, id INTEGER, first INTEGER NOT NULL, last INTEGER NOT NULL, worker BLOB NOT NULL,
      consumer BLOB, is_finished INTEGER NOT NULL, PRIMARY KEY (pass, id)) WITHOUT ROWID;
CREATE INDEX taken ON ranges (pass, consumer);
INSERT INTO head VALUES (3, x'7fd6e9572590636d1f8c085d15674c3a');
INSERT INTO branches VALUES (1, x'c4bb86c3d1c427103c344c4189eb2f1e'), (3, x'7bd5d47e446fcec2a3d811736110e578');
INSERT INTO facts VALUES ('secret', x'f5b165224a58b791df6af1d8303e61cd');
INSERT INTO datasets VALUES (x'd1', x'1201d12004');
INSERT INTO names VALUES ('numbers', x'd1');
INSERT INTO workers VALUES (x'76', 'v.example:1');
INSERT INTO passes VALUES (x'a0', 'shared', x'', 0, x'd1', 3, 3, 'AUTO', 4, 0, 3, 0, NULL);
INSERT INTO passes VALUES (x'a1', '', x'61', 5, x'd1', 2, 1, 'AUTO', 4, 0, 1, 1, 12.5);
INSERT INTO lists VALUES (x'a0', x'0000000000000000', 1, 1), (x'a0', x'0000000100000001', 2, 4);
INSERT INTO consumers VALUES (x'a0', x'61', 1, 2, x'0a06080210011802', x'6f');
INSERT INTO ranges VALUES (x'a0', 1, 0, 1, x'76', x'61', 1), (x'a0', 2, 1, 2, x'', x'61', 0);
"""
# Two commits that were answered: the last one of a process that has ended, and that of the next one.
ANSWERED = (
    Commit(
        number=2,
        branch=bytes.fromhex("c4bb86c3d1c427103c344c4189eb2f1e"),
        seal=bytes.fromhex("326a67eacc41c0d98ce4eb5158081ad9"),
    ),
    Commit(
        number=3,
        branch=bytes.fromhex("7bd5d47e446fcec2a3d811736110e578"),
        seal=bytes.fromhex("f06a09fdece938d8338e0152ee053679"),
    ),
)


def test_a_journal_that_another_release_has_written_goes_on(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as tables:
        tables.executescript(WRITTEN)
    with contextlib.closing(Journal(tmp_path)) as journal:
        check_goes_on(journal)


def check_goes_on(journal: Journal) -> None:
    assert journal.commit == ANSWERED[1]
    assert [journal.standing(commit) for commit in ANSWERED] == [Standing.KNOWN] * 2

    direct = Direct(journal)
    direct.workers, direct.assigned = [b"v", b"w"], [b"v", b"w"]
    dataset = description(num_splits=4, file_splits=[1, 3])
    dataset.digest = b"\xd1"
    consumer = direct.open(
        b"a", dataset, job_name="shared", policy=OpenPassRequest.FILE, guarantee=EXACTLY_ONCE, opening=b"o"
    )
    assert [(one.id, one.worker, one.is_finished) for one in consumer.opened.taken] == [
        (1, b"v", True),
        (2, b"", False),
    ]
    assert consumer.ask(2).ids == [2], "the last answer"
    assert [(one.id, one.first, one.worker) for one in consumer.take(64).ranges] == [(3, 2, b"w"), (4, 3, b"w")]
    assert direct.collect(1e9, 1.0, 1.0) == 1


def test_a_new_journal_is_as_another_release_makes_it(tmp_path: Path) -> None:
    queries = ("PRAGMA application_id", "PRAGMA user_version", "PRAGMA auto_vacuum", "SELECT sql FROM sqlite_master")
    found: list[list[list[tuple[object, ...]]]] = []
    Journal(tmp_path / "new").close()
    for path in (tmp_path / "new" / FILE, tmp_path / "other"):
        with contextlib.closing(sqlite3.connect(path)) as tables:
            if path.name == "other":
                tables.executescript(WRITTEN)
            found.append([tables.execute(query).fetchall() for query in queries])
    assert found[0] == found[1]


def test_the_list_of_each_file_is_named_by_its_place_and_its_number() -> None:
    direct = Direct()
    direct.assigned = [b"v", b"w"]
    direct.open(dataset=description(num_splits=6, file_splits=[1, 2, 3]), policy=OpenPassRequest.FILE)
    with direct.journal.transaction() as tables:
        lists = tables.execute("SELECT hex(worker), next, last FROM lists ORDER BY worker").fetchall()
    assert lists == [("0000000000000000", 0, 1), ("0000000000000002", 3, 6), ("0000000100000001", 1, 3)]
    direct.close()
