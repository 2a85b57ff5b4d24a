"""What a dispatcher writes is its owner's only."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from dispatching import EXACTLY_ONCE, Consumer, Peer

from fedstack.errors import JournalError
from fedstack.service.data import DispatcherConfig, DispatchServer
from fedstack.service.data.dispatcher.journal import FILE, Journal

pytestmark = pytest.mark.skipif(os.name != "posix", reason="this system has no modes of files")


@pytest.fixture(autouse=True, params=[0o022, 0o000, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Returns the modes of a folder and of all that is in it."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in found}


def check_private(folder: Path) -> None:
    found = modes(folder)
    assert {".", FILE, f"{FILE}-wal", "definitions"} < found.keys()
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


def test_the_folder_and_all_files_in_it_are_the_owners_only_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "where"
    config = DispatcherConfig(work_dir=folder, fault_tolerant_mode=True)
    with DispatchServer(config) as server, Peer(server.target) as peer:
        Consumer(peer, peer.register(b"clients' arrays"), guarantee=EXACTLY_ONCE).take(2)
        check_private(folder)
    assert not any(mode & 0o077 for mode in modes(folder).values())


def test_a_folder_with_nothing_but_a_journal_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    with DispatchServer(DispatcherConfig(work_dir=folder, fault_tolerant_mode=True)) as server:
        with Peer(server.target) as peer:
            peer.register(b"clients' arrays")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    folder.chmod(0o777)
    journal = Journal(folder)
    check_private(folder)
    journal.close()


def test_an_empty_folder_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    folder.chmod(0o755)
    Journal(folder).close()
    assert modes(folder)["."] == 0o700


def test_a_folder_that_has_other_things_and_lets_others_in_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(
        JournalError, match=f"{tmp_path} with mode 0755 and an unrelated file 'notes'.*choose a separate folder"
    ):
        Journal(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["notes"]
    assert modes(tmp_path)["."] == 0o755
    tmp_path.chmod(0o700)
    Journal(tmp_path).close()


def test_a_folder_of_another_user_that_lets_others_in_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o750)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(JournalError, match="with mode 0750 and another owner"):
        Journal(tmp_path)
