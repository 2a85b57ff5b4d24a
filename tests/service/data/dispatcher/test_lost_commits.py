"""A journal after a crash, a cut, another copy or a changed byte: a pass over it is exact, or refused."""

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from dispatching import Consumer, Peer
from journal_histories import NAMES, Moment, Outcome, attend, consumer, history, resumed, serving

from fedstack.errors import FedstackError, JournalError, ResourceLimitError, StaleSessionError
from fedstack.proto.data_service_pb2 import Commit
from fedstack.service.data.dispatcher.journal import FILE, LAST, Journal
from fedstack.service.data.dispatcher.ledger import Commits, Standing

WAL = f"{FILE}-wal"
STEPS = 20


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Sequence[Moment]]:
    return history(tmp_path_factory.mktemp("history"), STEPS)


def check(outcome: Outcome) -> None:
    assert outcome.is_exact or outcome.is_refused, f"{outcome.errors}, and not exact"


def copied(moment: Moment, folder: Path, knows_last: bool = False) -> Path:
    """Returns a copy of a journal, by default without the note of its last commit: only peers know of that."""
    shutil.copytree(moment.folder, folder)
    if not knows_last:
        (folder / LAST).unlink()
    return folder


@pytest.mark.parametrize("at", range(0, STEPS, 3))
def test_after_a_crash_at_any_commit_all_goes_on(past: tuple[bytes, Sequence[Moment]], at: int, tmp_path: Path) -> None:
    digest, moments = past
    found = resumed(copied(moments[at], tmp_path / "copy", knows_last=True), digest, moments[at].places)
    assert found.errors == [None, None]
    assert found.is_exact


def test_consumers_may_know_less_than_the_journal(past: tuple[bytes, Sequence[Moment]], tmp_path: Path) -> None:
    digest, moments = past
    found = resumed(copied(moments[-1], tmp_path / "copy", knows_last=True), digest, moments[3].places)
    assert found.errors == [None, None]
    assert found.is_exact


@pytest.mark.parametrize("at", range(0, STEPS - 1, 3))
def test_an_older_copy_is_found_out_by_those_who_know_more(
    past: tuple[bytes, Sequence[Moment]], at: int, tmp_path: Path
) -> None:
    digest, moments = past
    found = resumed(copied(moments[at], tmp_path / "copy", knows_last=True), digest, moments[-1].places)
    assert [type(error) for error in found.errors] == [StaleSessionError, StaleSessionError]
    assert all("restore the latest copy of its work_dir" in str(error) for error in found.errors)


def test_what_a_worker_knows_is_heard_of_by_consumers_who_do_not(
    past: tuple[bytes, Sequence[Moment]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest, moments = past
    older = copied(moments[8], tmp_path / "copy", knows_last=True)
    found = resumed(older, digest, moments[8].places, moments[-1].worker)
    assert [type(error) for error in found.errors] == [StaleSessionError, StaleSessionError]
    assert "has lost commits" in caplog.text
    with serving(older) as server, Peer(server.target) as peer:
        attend(peer)
        fresh = Consumer(peer, digest, b"c", job_name="shared")
        assert fresh.take_all(), "a new pass begins"


def test_a_newer_journal_that_is_put_back_is_good_again(past: tuple[bytes, Sequence[Moment]], tmp_path: Path) -> None:
    digest, moments = past
    older = copied(moments[8], tmp_path / "older", knows_last=True)
    assert resumed(older, digest, moments[-1].places).is_refused
    with serving(older) as server, Peer(server.target) as peer:
        later = attend(peer)  # a worker that stays hears of a commit that the newer one has not
    newer = copied(moments[-1], tmp_path / "newer", knows_last=True)
    with serving(newer) as server, Peer(server.target) as peer, pytest.raises(StaleSessionError):
        attend(peer, later)
    found = resumed(newer, digest, moments[-1].places)
    assert found.errors == [None, None]
    assert found.is_exact


def test_two_copies_that_both_go_on_are_told_apart(past: tuple[bytes, Sequence[Moment]], tmp_path: Path) -> None:
    _, moments = past
    commits: list[Commit] = []
    for name in ("one", "other"):
        with serving(copied(moments[5], tmp_path / name)) as server, Peer(server.target) as peer:
            for index in range(3):
                commits.append(attend(peer))
                peer.register(b"definition %d" % index)
    one, other = Journal(tmp_path / "one"), Journal(tmp_path / "other")
    assert one.commit.number == other.commit.number
    assert one.standing(other.commit) is Standing.LOST
    assert one.standing(one.commit) is Standing.KNOWN
    one.close()
    other.close()


@pytest.mark.parametrize("knows_last", [True, False])
def test_a_log_that_was_cut_doubles_nothing(
    past: tuple[bytes, Sequence[Moment]], tmp_path: Path, knows_last: bool
) -> None:
    digest, moments = past
    draw, refused = random.Random(1), 0
    for number in range(12):
        folder = copied(moments[-1], tmp_path / str(number), knows_last)
        log = (folder / WAL).read_bytes()
        (folder / WAL).write_bytes(log[: int(len(log) * draw.choice([draw.random(), draw.uniform(0.7, 1.0)]))])
        found = resumed(folder, digest, moments[-1].places)
        check(found)
        refused += found.is_refused
        if knows_last and found.is_refused:
            assert [type(error) for error in found.errors] == [JournalError]
            assert "has lost commits" in str(found.errors[0])
            assert f"delete {LAST} to continue with the remaining" in str(found.errors[0])
    assert refused > 6


@pytest.mark.parametrize("name", [FILE, WAL])
def test_a_byte_that_has_changed_doubles_and_loses_nothing(
    past: tuple[bytes, Sequence[Moment]], tmp_path: Path, name: str
) -> None:
    digest, moments = past
    draw, refused = random.Random(2), 0
    for number in range(30):
        folder = copied(moments[-1], tmp_path / str(number))
        if name == FILE:
            Journal(folder).close()  # from the log into the tables
        content = bytearray((folder / name).read_bytes())
        content[draw.choice([at for at, byte in enumerate(content) if byte])] ^= 1 << draw.randrange(8)
        (folder / name).write_bytes(content)
        found = resumed(folder, digest, moments[-1].places)
        check(found)
        refused += found.is_refused
    assert refused > 3


def changed_row(folder: Path) -> None:
    change(folder, lambda tables: tables.execute("UPDATE ranges SET last = last - 1 WHERE id = 1"))


def lost_row(folder: Path) -> None:
    change(folder, lambda tables: tables.execute("DELETE FROM ranges WHERE id = 2"))


def other_number(folder: Path) -> None:
    change(folder, lambda tables: tables.execute("UPDATE head SET number = number + 100"))


def without_index(folder: Path) -> None:
    change(folder, lambda tables: tables.execute("DROP INDEX taken"))


def change(folder: Path, how: Callable[[sqlite3.Connection], object]) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE)) as tables:
        how(tables)
        tables.commit()


@pytest.mark.parametrize("damage", [changed_row, lost_row, other_number, without_index])
def test_rows_that_are_not_those_that_were_written_are_refused_at_the_start(
    past: tuple[bytes, Sequence[Moment]], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = copied(past[1][-1], tmp_path / "copy", knows_last=True)
    damage(folder)
    with pytest.raises(JournalError, match=r"journal is damaged: .*restore the latest copy"):
        Journal(folder)


def test_a_journal_that_is_gone_while_its_last_commit_is_noted_is_no_new_one(
    past: tuple[bytes, Sequence[Moment]], tmp_path: Path
) -> None:
    folder = copied(past[1][-1], tmp_path / "copy", knows_last=True)
    for name in (FILE, WAL):
        (folder / name).unlink()
    with pytest.raises(JournalError, match=r"has lost commits: .* ends with commit 0"):
        Journal(folder)
    (folder / LAST).write_bytes(b"garbage")
    Journal(folder).close()


def test_a_disk_that_is_full_for_a_while_doubles_and_loses_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    digest, moments = history(tmp_path, 2)
    draw, places, failures = random.Random(3), list(moments[-1].places), 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number in range(8):
        folder = moments[-1].folder
        with serving(folder) as server, Peer(server.target) as peer:
            consumers = [consumer(peer, digest, name, place) for name, place in zip(NAMES, places, strict=True)]
            for index, one in enumerate(consumers):
                places[index] = places[index].after(one.opened.commit, one.opened.taken)
            for step in range(6):
                index = step % 2
                room = (folder / WAL).stat().st_size + draw.randrange(30_000)
                try:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
                    answer = consumers[index].take(1, places[index].finished)
                except FedstackError as error:
                    assert isinstance(error, JournalError | ResourceLimitError)
                    failures += 1
                    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                    answer = consumers[index].repeat()
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                places[index] = places[index].after(answer.commit, answer.range)
            # As a crash leaves it.
            shutil.copytree(folder, tmp_path / f"left-{number}")
        moments = [Moment(tmp_path / f"left-{number}", tuple(places), moments[-1].worker)]
    assert failures > 5
    found = resumed(moments[-1].folder, digest, places)
    assert found.errors == [None, None]
    assert found.is_exact


def test_the_worker_table_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(tmp_path) as server, Peer(server.target) as peer:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / WAL).stat().st_size, hard))
            with pytest.raises(FedstackError):
                attend(peer)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        attend(peer)
    with serving(tmp_path) as server, Peer(server.target) as peer:
        assert peer.workers() == ["w.example:1"]


def test_commits_of_branches_that_are_no_longer_kept_are_strange_and_not_lost() -> None:
    commits = Commits(b"secret")
    first = commits = commits.branched()
    for _ in range(3):
        commits = commits.next().branched()
    assert commits.standing(first.latest) is Standing.KNOWN
    kept = Commits(b"secret", {}, commits.branch, commits.first, commits.number)
    assert kept.standing(first.latest) is Standing.STRANGE
    assert kept.standing(commits.next().latest) is Standing.LOST
    assert Commits(b"other").branched().standing(first.latest) is Standing.STRANGE


def test_nobody_can_make_up_a_commit_that_ends_the_passes_of_others(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Peer(server.target) as peer:
        digest = peer.register()
        other = Consumer(peer, digest, b"a")
        forged = Commit(number=other.commit.number + 1000, branch=other.commit.branch, seal=other.commit.seal)
        with pytest.raises(StaleSessionError, match="without a journal or with another journal"):
            Consumer(peer, digest, b"b", commit=forged)
        assert other.take_all()
