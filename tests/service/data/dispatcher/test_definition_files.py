"""How a dispatcher keeps the definitions of datasets, and what it says of those that are damaged."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedstack.errors import JournalError
from fedstack.service.data.dispatcher.definition_files import DefinitionFiles

CONTENT = b"a definition"
DIGEST = hashlib.sha256(CONTENT).digest()
LARGE = bytes(5_000_000)


def kept(folder: Path | None, content: bytes = CONTENT) -> DefinitionFiles:
    files = DefinitionFiles(folder)
    files.keep(hashlib.sha256(content).digest(), memoryview(content))
    return files


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("content", [CONTENT, LARGE, b""], ids=["small", "large", "empty"])
def test_what_is_kept_is_there_and_nothing_else_is(tmp_path: Path, in_memory: bool, content: bytes) -> None:
    folder = None if in_memory else tmp_path / "definitions"
    digest = hashlib.sha256(content).digest()
    files = kept(folder, content)
    assert files.is_sound(digest)
    assert files.has(digest)
    assert files.read(digest) == content
    other = hashlib.sha256(b"another").digest()
    assert not files.is_sound(other)
    assert not files.has(other)
    if folder is not None:
        assert os.listdir(folder) == [digest.hex()]


def test_a_folder_of_definitions_that_lets_others_in_is_closed_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "definitions"
    kept(folder)
    file = folder / DIGEST.hex()
    file.chmod(0o644)
    folder.chmod(0o755)
    assert DefinitionFiles(folder).has(DIGEST)
    if os.name == "posix":
        assert [oct(path.stat().st_mode & 0o777) for path in (folder, file)] == ["0o700", "0o600"]


def test_what_is_kept_in_memory_is_a_copy() -> None:
    buffer = bytearray(CONTENT)
    files = DefinitionFiles(None)
    files.keep(DIGEST, memoryview(buffer))
    buffer[:1] = b"A"
    assert files.read(DIGEST) == CONTENT


@pytest.mark.parametrize("look", [DefinitionFiles.has, DefinitionFiles.read])
def test_what_was_there_before_is_sound_once_it_has_been_looked_at(
    tmp_path: Path, look: Callable[[DefinitionFiles, bytes], object]
) -> None:
    kept(tmp_path)
    files = DefinitionFiles(tmp_path)
    assert not files.is_sound(DIGEST)
    assert look(files, DIGEST)
    assert files.is_sound(DIGEST)


def test_a_definition_whose_file_is_gone_is_not_there(tmp_path: Path) -> None:
    files = kept(tmp_path)
    file = tmp_path / DIGEST.hex()
    file.unlink()
    assert not files.is_sound(DIGEST)
    with pytest.raises(JournalError, match=f"registered dataset is missing: {file}; register the dataset again"):
        files.read(DIGEST)
    assert not files.has(DIGEST)
    file.write_bytes(b"A definition")
    assert not files.is_sound(DIGEST), "it was not there when it was last looked at"


def test_a_damaged_definition_is_found_when_it_is_looked_at_and_replaced_by_a_sound_one(tmp_path: Path) -> None:
    files = kept(tmp_path)
    (tmp_path / DIGEST.hex()).write_bytes(b"A definition")
    assert not files.has(DIGEST)
    assert not files.is_sound(DIGEST)
    files.keep(DIGEST, memoryview(CONTENT))
    assert files.is_sound(DIGEST)
    assert files.read(DIGEST) == CONTENT


def test_a_damaged_definition_that_is_read_is_put_aside_and_does_not_come_back(tmp_path: Path) -> None:
    files = kept(tmp_path)
    file = tmp_path / DIGEST.hex()
    file.write_bytes(b"A definition")
    with pytest.raises(
        JournalError, match=f"is damaged: {file}; the file has been renamed to end in .damaged: register the"
    ):
        files.read(DIGEST)
    assert os.listdir(tmp_path) == [f"{DIGEST.hex()}.damaged"]
    (tmp_path / f"{DIGEST.hex()}.damaged").rename(file)
    assert not files.is_sound(DIGEST)
    assert not files.has(DIGEST)


def test_a_sound_definition_is_not_written_again(tmp_path: Path) -> None:
    files = kept(tmp_path)
    before = os.stat(tmp_path / DIGEST.hex())
    files.keep(DIGEST, memoryview(CONTENT))
    assert os.stat(tmp_path / DIGEST.hex()).st_ino == before.st_ino


@pytest.mark.skipif(os.name != "posix", reason="folders are not synced there")
@pytest.mark.parametrize("content", [CONTENT, LARGE], ids=["small", "large"])
def test_a_definition_is_synced_before_it_has_its_name_and_its_name_before_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    name = hashlib.sha256(content).hexdigest()
    synced: list[tuple[str, int, bool]] = []
    descriptors: list[int] = []

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        is_folder = os.path.samestat(found, tmp_path.stat())
        synced.append(
            ("folder", 0, name in os.listdir(tmp_path))
            if is_folder
            else ("file", found.st_size, name in os.listdir(tmp_path))
        )
        descriptors.append(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    kept(tmp_path, content)
    assert synced == [("file", len(content), False), ("folder", 0, True)]
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
