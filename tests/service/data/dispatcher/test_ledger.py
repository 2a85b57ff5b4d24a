"""Which commits a journal has, what it says of those that it has not, and what a change that fails leaves."""

import contextlib
import functools
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedstack.errors import JournalError, ResourceLimitError
from fedstack.proto.data_service_pb2 import Commit
from fedstack.service.data.dispatcher.journal import FILE, LAST, Journal, Tables
from fedstack.service.data.dispatcher.ledger import Standing

KNOWN, LOST, STRANGE = Standing.KNOWN, Standing.LOST, Standing.STRANGE
MOST_BRANCHES = 10_000


def note(journal: Journal, name: str) -> Commit:
    """Makes a commit, and returns it."""
    with journal.transaction() as tables:
        tables.execute("INSERT INTO names VALUES (?, x'00')", (name,))
    return journal.commit


def noted(journal: Journal) -> list[str]:
    with journal.transaction() as tables:
        return [name for (name,) in tables.execute("SELECT dataset_id FROM names ORDER BY dataset_id")]


def count(journal: Journal, table: str) -> int:
    with journal.transaction() as tables:
        return tables.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def copied(journal: Path, folder: Path) -> Path:
    """Copies a journal, as a crash would leave it."""
    shutil.copytree(journal, folder)
    return folder


def change(folder: Path, statement: str) -> None:
    """Changes what stands in the file of a journal, as another program would."""
    with contextlib.closing(sqlite3.connect(folder / FILE)) as tables:
        tables.execute(statement)
        tables.commit()


class Journals:
    """Opens journals, which are closed when the test ends, however it does."""

    def __init__(self) -> None:
        self._opened = contextlib.ExitStack()

    def __call__(self, folder: Path | None = None) -> Journal:
        journal = Journal(folder)
        self._opened.callback(journal.close)
        return journal

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def opened() -> Iterator[Journals]:
    with contextlib.closing(Journals()) as journals:
        yield journals


@pytest.fixture(params=[True, False], ids=["in memory", "in a folder"])
def journal(request: pytest.FixtureRequest, opened: Journals, tmp_path: Path) -> Journal:
    return opened(None if request.param else tmp_path)


def test_each_change_is_one_more_commit_and_a_look_is_none(journal: Journal) -> None:
    first = note(journal, "a")
    assert noted(journal) == ["a"]
    with journal.transaction():
        pass
    assert journal.commit == first
    assert journal.standing(first) is KNOWN
    second = note(journal, "b")
    assert (second.number, second.branch) == (first.number + 1, first.branch)
    assert count(journal, "branches") == 1
    assert second.seal != first.seal
    assert [journal.standing(commit) for commit in (first, second)] == [KNOWN, KNOWN]


def test_each_process_that_writes_begins_a_branch_and_the_numbers_go_on(opened: Journals, tmp_path: Path) -> None:
    commits: list[Commit] = []
    for name in "abc":
        journal = opened(tmp_path)
        assert [journal.standing(commit) for commit in commits] == [KNOWN] * len(commits)
        commits += [note(journal, name), note(journal, name * 2)]
        journal.close()
    opened(tmp_path).close()
    journal = opened(tmp_path)
    assert journal.commit == commits[-1], "who only looks writes nothing"
    assert [commit.number for commit in commits] == list(range(commits[0].number, commits[0].number + 6))
    assert len({commit.branch for commit in commits}) == 3
    assert count(journal, "branches") == 3
    journal.close()


@pytest.mark.parametrize("starts", range(4))
def test_what_came_after_a_copy_is_lost_in_the_copy_however_often_that_is_started(
    opened: Journals, tmp_path: Path, starts: int
) -> None:
    here = opened(tmp_path / "here")
    before = [note(here, "a"), note(here, "b")]
    copy = copied(tmp_path / "here", tmp_path / "copy")
    after = [note(here, "c"), note(here, "d")]
    here.close()
    for start in range(starts):
        journal = opened(copy)
        note(journal, f"start {start}")
        note(journal, f"then {start}")
        journal.close()
    journal = opened(copy)
    assert [journal.standing(commit) for commit in before] == [KNOWN, KNOWN]
    assert [journal.standing(commit) for commit in after] == [LOST, LOST]
    journal.close()


def test_the_commits_of_another_journal_are_strange(opened: Journals) -> None:
    one, other = opened(), opened()
    assert one.standing(note(other, "a")) is STRANGE
    assert one.standing(Commit(number=1)) is STRANGE
    one.close()
    other.close()


def test_only_so_many_branches_are_kept_the_latest_ones(opened: Journals, tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with journal.transaction() as tables:
        branches = [(-number, b"") for number in range(1, MOST_BRANCHES)]
        tables.executemany("INSERT INTO branches VALUES (?, ?)", branches)
    assert count(journal, "branches") == MOST_BRANCHES
    journal.close()
    journal = opened(tmp_path)
    note(journal, "a")
    with journal.transaction() as tables:
        found = tables.execute("SELECT count(*), min(first) FROM branches").fetchone()
    assert found == (MOST_BRANCHES, -MOST_BRANCHES + 2)
    journal.close()


def test_what_a_change_that_fails_has_written_is_gone_at_once(journal: Journal) -> None:
    before = note(journal, "a")
    with pytest.raises(ZeroDivisionError), journal.transaction() as tables:
        tables.execute("INSERT INTO names VALUES ('half', x'00')")
        raise ZeroDivisionError
    journal.compact()
    assert noted(journal) == ["a"]
    assert journal.commit == before
    assert note(journal, "b").number == before.number + 1


def test_a_journal_is_sound_after_a_change_that_failed(opened: Journals, tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(ZeroDivisionError), journal.transaction() as tables:
        tables.execute("INSERT INTO names VALUES ('half', x'00')")
        raise ZeroDivisionError
    last = note(journal, "a")
    journal.close()
    journal = opened(tmp_path)
    assert noted(journal) == ["a"]
    assert journal.commit == last
    journal.close()


class BadDisk(sqlite3.Connection):
    """Tables that do not do what begins with certain words."""

    fails: tuple[str, ...] = ()
    says = "disk I/O error"

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self.fails and statement.startswith(self.fails):
            raise sqlite3.OperationalError(self.says)
        return super().execute(statement, *values)


@pytest.fixture
def bad_disk(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=BadDisk))
    return monkeypatch


@pytest.mark.parametrize("fails", [("COMMIT",), ("COMMIT", "ROLLBACK")])
def test_a_change_that_could_not_be_ended_is_gone_when_the_disk_works_again(
    opened: Journals, tmp_path: Path, bad_disk: pytest.MonkeyPatch, fails: tuple[str, ...]
) -> None:
    journal = opened(tmp_path)
    before = note(journal, "a")
    bad_disk.setattr(BadDisk, "fails", fails)
    with pytest.raises(JournalError, match=f"cannot be used: {tmp_path / FILE}: disk I/O error; check that this user"):
        note(journal, "half")
    bad_disk.setattr(BadDisk, "fails", ())
    assert noted(journal) == ["a"]
    assert journal.commit == before
    last = note(journal, "b")
    journal.close()
    journal = opened(tmp_path)
    assert (noted(journal), journal.commit) == (["a", "b"], last)
    journal.close()


@pytest.mark.parametrize(
    ("says", "kind", "found"),
    [
        ("database or disk is full", ResourceLimitError, "disk of the dispatcher's journal is full: .*try again"),
        ("database is locked", JournalError, "Another dispatcher uses this journal: "),
        ("database disk image is malformed", JournalError, "is damaged: .*: database disk image is malformed; restore"),
        ("file is not a database", JournalError, "is damaged: .*: file is not a database; restore the latest copy"),
        ("Could not decode to UTF-8 column 'address' with text 'x'", JournalError, "is damaged: .*: Could not decode"),
        (
            "disk I/O error",
            JournalError,
            "cannot be used: .*: disk I/O error; check that this user has permission to write",
        ),
    ],
)
def test_what_the_disk_says_is_said_in_other_words(
    opened: Journals, tmp_path: Path, bad_disk: pytest.MonkeyPatch, says: str, kind: type[Exception], found: str
) -> None:
    journal = opened(tmp_path)
    bad_disk.setattr(BadDisk, "says", says)
    bad_disk.setattr(BadDisk, "fails", ("INSERT",))
    with pytest.raises(kind, match=found):
        note(journal, "a")
    journal.close()


def test_commits_are_synced_and_nobody_waits_for_a_lock_whatever_else_is_the_custom(
    opened: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def customary(*arguments: Any, **options: Any) -> sqlite3.Connection:
        tables = connect(*arguments, **options)
        tables.execute("PRAGMA synchronous = NORMAL")
        return tables

    monkeypatch.setattr(sqlite3, "connect", customary)
    journal = opened(tmp_path)
    with journal.transaction() as tables:
        settings = ("synchronous", "busy_timeout", "journal_mode", "locking_mode")
        found = [tables.execute(f"PRAGMA {setting}").fetchone()[0] for setting in settings]
    assert found == [2, 0, "wal", "exclusive"]
    journal.close()


def test_where_a_journal_is_is_said(opened: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, file in ((Path("here"), str(Path.cwd() / "here" / FILE)), (None, "the memory of this process")):
        journal = opened(folder)
        assert journal.file == file
        assert file in repr(journal)
        journal.close()
        journal.close()


def test_the_last_commit_is_noted_beside_a_journal_by_those_who_make_one(opened: Journals, tmp_path: Path) -> None:
    journal = opened(tmp_path / "here")
    note(journal, "a")
    (tmp_path / "here" / LAST).unlink()
    assert noted(journal) == ["a"]
    assert not (tmp_path / "here" / LAST).exists(), "who looks writes nothing"
    note(journal, "b")
    older = copied(tmp_path / "here", tmp_path / "older")
    note(journal, "c")
    newer = copied(tmp_path / "here", tmp_path / "newer")
    shutil.copy(older / LAST, newer / LAST)
    shutil.copy(tmp_path / "here" / LAST, older / LAST)
    journal.close()
    number = journal.commit.number
    with pytest.raises(
        JournalError, match=f"has lost commits: .* ends with commit {number - 1}, but .* records commit {number}"
    ):
        opened(older)
    behind = opened(newer)
    assert noted(behind) == ["a", "b", "c"]
    behind.close()


def test_those_are_refused_who_know_what_a_journal_does_not(opened: Journals, tmp_path: Path) -> None:
    here, other = opened(tmp_path / "here"), opened()
    known = note(here, "a")
    copy = opened(copied(tmp_path / "here", tmp_path / "copy"))
    later, strange = note(here, "b"), note(other, "c")
    assert copy.refusal(Commit()) is None
    assert copy.refusal(known) is None
    assert f"has lost commits: it does not contain commit {later.number}, " in (copy.refusal(later) or "")
    assert "was restarted without a journal or with another journal" in (copy.refusal(strange) or "")
    for journal in (here, other, copy):
        journal.close()


def test_who_begins_anew_knows_no_commit_of_before_and_says_that_some_are_lost(
    opened: Journals, tmp_path: Path
) -> None:
    journal = opened(tmp_path)
    before = [note(journal, "a"), note(journal, "b")]
    other = opened()
    strange = note(other, "c")
    other.close()
    commits: list[Commit] = []
    for time in range(2):
        journal.begin_anew(lambda tables: tables.execute("DELETE FROM names WHERE dataset_id = 'a'"))
        assert noted(journal) == [*(f"after {number}" for number in range(time)), "b"]
        assert [journal.standing(commit) for commit in [*before, *commits]] == [STRANGE] * (2 + len(commits))
        assert count(journal, "branches") == 1
        commits = [journal.commit, note(journal, f"after {time}")]
        assert commits[0].number == before[-1].number + 1 + 2 * time
        assert (commits[1].number, commits[1].branch) == (commits[0].number + 1, commits[0].branch)
        assert [journal.standing(commit) for commit in commits] == [KNOWN, KNOWN]
        assert "has lost commits" in (journal.refusal(strange) or "")
    journal.close()
    journal = opened(tmp_path)
    assert [journal.standing(commit) for commit in [*before, *commits]] == [STRANGE, STRANGE, KNOWN, KNOWN]
    assert "has lost commits" in (journal.refusal(strange) or "")
    assert note(journal, "d").number == commits[-1].number + 1
    journal.close()


def test_a_journal_that_could_not_begin_anew_is_as_it_was(opened: Journals, tmp_path: Path) -> None:
    journal = opened(tmp_path)
    before = note(journal, "a")

    def forget(tables: Tables) -> None:
        tables.execute("DELETE FROM names")
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(ResourceLimitError):
        journal.begin_anew(forget)
    assert (noted(journal), journal.commit, journal.standing(before)) == (["a"], before, KNOWN)
    last = note(journal, "b")
    assert last.number == before.number + 1
    assert "restarted" in (journal.refusal(Commit(number=1)) or "")
    journal.close()
    journal = opened(tmp_path)
    assert [journal.standing(commit) for commit in (before, last)] == [KNOWN, KNOWN]
    journal.close()


def test_a_crash_while_a_journal_begins_anew_leaves_one_that_can_be_used(opened: Journals, tmp_path: Path) -> None:
    journal = opened(tmp_path / "here")
    note(journal, "a")
    last = tmp_path / "here" / LAST
    found: list[bytes] = []
    journal.begin_anew(lambda tables: found.extend(path.read_bytes() for path in [last] if path.exists()))
    crashed = copied(tmp_path / "here", tmp_path / "crashed")
    # The new commit is on the disk, and is not noted yet.
    (crashed / LAST).unlink()
    for content in found:
        (crashed / LAST).write_bytes(content)
    again = opened(crashed)
    assert again.commit == journal.commit
    again.close()
    journal.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM head",
        "INSERT INTO head SELECT * FROM head",
        "UPDATE head SET digest = x''",
        "UPDATE facts SET value = x'00'",
        "INSERT INTO names VALUES ('more', x'00')",
        "CREATE TABLE more (a)",
    ],
)
def test_a_journal_that_somebody_has_changed_is_damaged(opened: Journals, tmp_path: Path, statement: str) -> None:
    journal = opened(tmp_path)
    note(journal, "a")
    journal.close()
    change(tmp_path, statement)
    with pytest.raises(JournalError, match="is damaged: .*restore the latest copy"):
        opened(tmp_path)


def damage(folder: Path, before: bytes, after: bytes, page: str) -> None:
    """Changes bytes in the first page of a table or an index."""
    file = folder / FILE
    with contextlib.closing(sqlite3.connect(file)) as tables:
        (number,) = tables.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (page,)).fetchone()
        (size,) = tables.execute("PRAGMA page_size").fetchone()
    content = file.read_bytes()
    start = (number - 1) * size
    found = content[start : start + size]
    assert before in found
    file.write_bytes(content[:start] + found.replace(before, after) + content[start + size :])


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("names", b"some name", b"some\xffname"),
        ("taken", b"some consumer", b"some consumes"),
    ],
)
def test_a_byte_that_has_changed_is_damage_also_in_a_name_and_in_an_index(
    opened: Journals, tmp_path: Path, page: str, before: bytes, after: bytes
) -> None:
    journal = opened(tmp_path)
    note(journal, "some name")
    with journal.transaction() as tables:
        tables.execute("INSERT INTO ranges VALUES (x'00', 1, 0, 1, x'', ?, 0)", (b"some consumer",))
    journal.close()
    damage(tmp_path, before, after, page)
    with pytest.raises(JournalError, match=f"is damaged: {tmp_path / FILE}: .*; restore the latest copy"):
        opened(tmp_path)


def test_a_byte_that_has_changed_in_the_schema_is_damage(opened: Journals, tmp_path: Path) -> None:
    opened(tmp_path).close()
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content.replace(b"tablenamesnames", b"table\xeeamesnames"))
    with pytest.raises(JournalError, match=f"is damaged: {tmp_path / FILE}: .*; restore the latest copy"):
        opened(tmp_path)


def newer(folder: Path) -> None:
    change(folder, "PRAGMA user_version = 99")


def foreign(folder: Path) -> None:
    change(folder, "PRAGMA application_id = 99")


@pytest.mark.parametrize("how", [newer, foreign])
def test_a_journal_that_cannot_be_used_is_left_to_others(
    opened: Journals, tmp_path: Path, how: Callable[[Path], None]
) -> None:
    journal = opened(tmp_path)
    note(journal, "a")
    journal.close()
    how(tmp_path)
    with pytest.raises(
        JournalError, match="release of fedstack that wrote the journal|another program's database"
    ) as refused:
        opened(tmp_path)
    change(tmp_path, "PRAGMA user_version = 2")
    change(tmp_path, f"PRAGMA application_id = {0x66734444}")
    assert noted(opened(tmp_path)) == ["a"], f"while {refused.value!r} is kept, with all that it refers to"
