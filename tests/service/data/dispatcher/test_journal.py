"""What a dispatcher's journal keeps, and what it says when it cannot."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dispatching import AT_LEAST_ONCE, Consumer, Peer, description, splits
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstack.errors import JournalError, ResourceLimitError
from fedstack.service.data import Dataset, DispatcherConfig, DispatchServer, register_dataset
from fedstack.service.data.dispatcher import datasets
from fedstack.service.data.dispatcher.journal import DEFINITIONS, FILE, LAST, Journal
from fedstack.service.host.limits import DispatcherLimits

LIMITS = DispatcherLimits()


def register(journal: Journal, name: str, definition: bytes = b"a definition") -> None:
    dataset = description(definition, dataset_id=name)
    with journal.transaction() as tables:
        datasets.register(tables, dataset, LIMITS)
        journal.keep_definition(dataset.digest, memoryview(definition))


def names(journal: Journal) -> set[str]:
    with journal.transaction() as tables:
        return {name for (name,) in tables.execute("SELECT dataset_id FROM names")}


def fault_tolerant(folder: Path, **fields: object) -> DispatcherConfig:
    return DispatcherConfig(work_dir=folder, fault_tolerant_mode=True, **fields)


def test_all_goes_on_where_it_was_when_a_dispatcher_is_started_again(tmp_path: Path) -> None:
    with DispatchServer(fault_tolerant(tmp_path / "made")) as server, Peer(server.target) as peer:
        peer.attend(b"w")
        digest = peer.register(b"mine", 100, dataset_id="numbers")
        consumer = Consumer(peer, digest, guarantee=AT_LEAST_ONCE)
        answer = consumer.take(2)
    with DispatchServer(fault_tolerant(tmp_path / "made")) as server, Peer(server.target) as peer:
        assert peer.describe("numbers").digest == digest
        assert peer.definition(digest) == b"mine"
        assert [one.worker for one in peer.ask(lambda stub: stub.list_workers()).worker] == [b"w"]
        consumer.peer = peer
        assert consumer.repeat().range == answer.range
        assert splits([*answer.range, *consumer.take_all()]) == list(range(100))


def test_without_fault_tolerance_nothing_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DispatchServer(DispatcherConfig(work_dir=tmp_path)) as server, Peer(server.target) as peer:
        peer.register()
    assert not list(tmp_path.iterdir())
    assert "does not use its work_dir" in caplog.text


def test_two_dispatchers_cannot_have_one_journal(tmp_path: Path) -> None:
    with DispatchServer(fault_tolerant(tmp_path)):
        with pytest.raises(JournalError, match=f"Another dispatcher uses this journal: {tmp_path}"):
            DispatchServer(fault_tolerant(tmp_path))
        program = f"from fedstack.service.data.dispatcher.journal import *; Journal(Path({str(tmp_path)!r}))"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "Another dispatcher uses this journal" in other.stderr
    DispatchServer(fault_tolerant(tmp_path)).stop()


def test_a_server_that_cannot_be_made_leaves_the_journal_to_others(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TLS"):
        DispatchServer(fault_tolerant(tmp_path, host="0.0.0.0"))
    DispatchServer(fault_tolerant(tmp_path)).stop()


def write_text(file: Path) -> None:
    file.write_text("These are the notes of somebody else, who has put them here. " * 100)


def write_database(file: Path) -> None:
    tables = sqlite3.connect(file)
    tables.execute("CREATE TABLE mine (a)")
    tables.commit()
    tables.close()


def write_newer(file: Path) -> None:
    Journal(file.parent).close()
    tables = sqlite3.connect(file)
    tables.execute("PRAGMA user_version = 99")
    tables.commit()
    tables.close()


def write_damaged(file: Path) -> None:
    journal = Journal(file.parent)
    with journal.transaction() as tables:
        tables.executemany("INSERT INTO names VALUES (?, x'00')", [(f"name-{index}" * 20,) for index in range(200)])
    journal.compact()
    journal.close()
    content = bytearray(file.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 100] = b"\xa5" * 100
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (write_text, "The dispatcher's journal is damaged"),
        (write_database, "found another program's database"),
        (write_newer, "Expected a journal of version 2, found a journal of version 99"),
        (write_damaged, "The dispatcher's journal is damaged"),
    ],
)
def test_a_journal_that_cannot_be_used_is_named_and_left_as_it_is(
    tmp_path: Path, write: Callable[[Path], None], found: str
) -> None:
    file = tmp_path / FILE
    write(file)
    before = file.read_bytes()
    with pytest.raises(JournalError, match=f"{found}.*{file}"):
        DispatchServer(fault_tolerant(tmp_path))
    assert file.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=f"cannot be used: {tmp_path}/file/folder: Not a directory"):
        Journal(tmp_path / "file" / "folder")


def test_a_definition_that_is_gone_is_named(tmp_path: Path) -> None:
    with DispatchServer(fault_tolerant(tmp_path)) as server, Peer(server.target) as peer:
        digest = peer.register()
        (tmp_path / DEFINITIONS / digest.hex()).unlink()
        with pytest.raises(
            JournalError, match=f"registered dataset is missing: .*{digest.hex()}; register the dataset again"
        ):
            peer.definition(digest)
        assert peer.describe(digest=digest).num_splits == 10
        peer.register()
        assert peer.definition(digest) == b"a definition"


def test_a_definition_that_is_gone_is_asked_for_where_somebody_has_it(tmp_path: Path) -> None:
    with DispatchServer(fault_tolerant(tmp_path)) as server:
        dataset = Dataset.range(5)
        assert register_dataset(server.target, dataset, dataset_id="numbers") == "numbers"
        (file,) = (tmp_path / DEFINITIONS).iterdir()
        file.unlink()
        register_dataset(server.target, dataset, dataset_id="numbers")
        assert file.exists()


@pytest.mark.parametrize("is_started_again", [True, False])
def test_a_definition_that_is_damaged_is_named_and_replaced_when_it_is_registered_again(
    tmp_path: Path, is_started_again: bool
) -> None:
    dataset = Dataset.range(5)
    with contextlib.ExitStack() as servers:
        server = servers.enter_context(DispatchServer(fault_tolerant(tmp_path)))
        register_dataset(server.target, dataset, dataset_id="numbers")
        (file,) = (tmp_path / DEFINITIONS).iterdir()
        sound = file.read_bytes()
        file.write_bytes(bytes([sound[0] ^ 1, *sound[1:]]))
        if is_started_again:
            server.stop()
            server = servers.enter_context(DispatchServer(fault_tolerant(tmp_path)))
        else:
            with (
                Peer(server.target) as peer,
                pytest.raises(JournalError, match=f"of a registered dataset is damaged: {file};.*register the"),
            ):
                peer.definition(bytes.fromhex(file.name))
        register_dataset(server.target, dataset, dataset_id="numbers")
        with Peer(server.target) as peer:
            assert peer.definition(bytes.fromhex(file.name)) == file.read_bytes() == sound


def test_a_definition_that_is_damaged_is_replaced_by_whoever_sends_it(tmp_path: Path) -> None:
    with DispatchServer(fault_tolerant(tmp_path)) as server, Peer(server.target) as peer:
        digest = peer.register()
        (tmp_path / DEFINITIONS / digest.hex()).write_bytes(b"A definition")
        peer.register()
        assert peer.definition(digest) == b"a definition"


def test_a_full_disk_is_said_and_nothing_of_the_request_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    register(journal, "before")
    with journal.transaction() as tables:
        (pages,) = tables.execute("PRAGMA page_count").fetchone()
    with journal.transaction() as tables:
        tables.execute(f"PRAGMA max_page_count = {pages}")
    kept = {"before"}
    with pytest.raises(ResourceLimitError, match=f"disk of the dispatcher's journal is full: {tmp_path}.*try again"):
        for index in range(10_000):
            register(journal, f"name-{index:04}" * 100)
            kept.add(f"name-{index:04}" * 100)
    assert names(journal) == kept
    with journal.transaction() as tables:
        tables.execute(f"PRAGMA max_page_count = {2 * pages}")
    register(journal, "after")
    assert names(journal) == {*kept, "after"}
    journal.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_disk_that_is_full_for_definitions_is_said(tmp_path: Path) -> None:
    with DispatchServer(fault_tolerant(tmp_path)) as server, Peer(server.target) as peer:
        dataset = description()
        (tmp_path / DEFINITIONS / f"{dataset.digest.hex()}.new").symlink_to("/dev/full")
        with pytest.raises(ResourceLimitError, match="is full"):
            peer.register()
        with pytest.raises(ValueError, match="the dispatcher has no datasets"):
            peer.describe(digest=dataset.digest)
        (tmp_path / DEFINITIONS / f"{dataset.digest.hex()}.new").unlink()
        assert peer.definition(peer.register()) == b"a definition"


def test_what_is_collected_gives_its_room_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with journal.transaction() as tables:
        tables.executemany("INSERT INTO ranges VALUES (x'00', ?, 0, 1, x'', NULL, 0)", [(id,) for id in range(10_000)])
    journal.compact()
    full = (tmp_path / FILE).stat().st_size
    with journal.transaction() as tables:
        tables.execute("DELETE FROM ranges")
    journal.compact()
    assert (tmp_path / FILE).stat().st_size < full / 2
    journal.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A journal as a crash has left it, and how long its log was after each registration."""
    folder = tmp_path_factory.mktemp("written")
    journal = Journal(folder / "here")
    sizes: list[int] = []
    for index in range(20):
        register(journal, f"name-{index:02}")
        sizes.append((folder / "here" / f"{FILE}-wal").stat().st_size)
    shutil.copytree(folder / "here", folder / "left")
    journal.close()
    return folder / "left", sizes


@given(share=st.floats(0, 1), is_garbage=st.booleans())
@settings(max_examples=examples(60))
def test_of_a_torn_log_everything_is_kept_that_was_written_before(
    written: tuple[Path, list[int]], share: float, is_garbage: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    left, sizes = written
    folder = tmp_path_factory.mktemp("torn") / "copy"
    shutil.copytree(left, folder)
    (folder / LAST).unlink()
    log = folder / f"{FILE}-wal"
    whole = log.read_bytes()
    # The schema was written before the first answer.
    cut = round(sizes[0] + share * (len(whole) - sizes[0]))
    log.write_bytes(whole[:cut] + (b"\x5a" * 5000 if is_garbage else b""))
    journal = Journal(folder)
    kept = sum(size <= cut for size in sizes)
    assert names(journal) == {f"name-{index:02}" for index in range(kept)}
    register(journal, "after")
    journal.close()
    again = Journal(folder)
    assert "after" in names(again)
    again.close()


FORKED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_journal import register
from fedstack.service.data.dispatcher.journal import Journal

journal = Journal(Path({folder!r}))
register(journal, "before")
if os.fork() == 0:
    journal.close()
    del journal
    sys.exit()
os.wait()
register(journal, "after")
os.kill(os.getpid(), 9)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_that_ends_leaves_the_journal_to_its_parent(tmp_path: Path) -> None:
    assert run(FORKED.format(tests=str(Path(__file__).parent), folder=str(tmp_path))) == -9
    journal = Journal(tmp_path)
    assert names(journal) == {"before", "after"}
    journal.close()


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_journal import register
from fedstack.service.data.dispatcher.journal import Journal

journal = Journal(Path({folder!r}))
for index in range({answered}):
    register(journal, f"name-{{index:02}}")
with journal.transaction() as tables:
    tables.execute("INSERT INTO names VALUES ('half', x'00')")
    os.kill(os.getpid(), 9)
"""


def test_a_dispatcher_that_is_killed_in_the_middle_of_a_change_has_made_none_of_it(tmp_path: Path) -> None:
    assert run(KILLED.format(tests=str(Path(__file__).parent), folder=str(tmp_path), answered=3)) == -9
    journal = Journal(tmp_path)
    assert names(journal) == {"name-00", "name-01", "name-02"}
    journal.close()


def run(program: str) -> int:
    """Runs a program in a process of its own, and returns what that ends with."""
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"]
    return subprocess.run(command, capture_output=True, check=False).returncode
