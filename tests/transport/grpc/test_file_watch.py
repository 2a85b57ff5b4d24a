"""Files that are read again when they change."""

import logging
import os
from pathlib import Path

import pytest

from fedstack.errors import InvalidValueError
from fedstack.transport.grpc.credential_files import FileWatch, Renewed


class Source:
    """A number in a file, and a clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 0.0
        path.write_text("1")
        self.value = Renewed(1, FileWatch([path]), self.read, clock=lambda: self.now)

    def read(self) -> int:
        try:
            return int(self.path.read_text())
        except ValueError as error:
            raise InvalidValueError("Expected a number, found none") from error

    def later(self) -> int:
        self.now += 1.5
        return self.value.get()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "number")


def replace(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def test_a_file_that_was_replaced_is_read_again(source: Source) -> None:
    assert source.value.get() == 1
    replace(source.path, "2")
    assert source.value.get() == 1  # it was looked at just now
    assert source.later() == 2


def test_what_is_no_good_changes_nothing_and_is_told_once(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    replace(source.path, "nonsense")
    assert [source.later(), source.later(), source.later()] == [1, 1, 1]
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line == f"Keeping the previous content of {source.path}: Expected a number, found none"
    replace(source.path, "34")
    assert source.later() == 34


def test_a_file_that_is_gone_changes_nothing_and_one_that_comes_back_does(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.path.unlink()
    assert [source.later(), source.later()] == [1, 1]
    assert caplog.records == []
    source.path.write_text("22")
    assert source.later() == 22


def test_a_path_means_the_same_file_wherever_the_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("number").write_text("1")
    watch = FileWatch(["number"])
    monkeypatch.chdir("/")
    replace(tmp_path / "number", "2")
    assert watch.has_changed()
    assert not watch.has_changed()
    assert watch.files == (os.fspath(tmp_path / "number"),)
