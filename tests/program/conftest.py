"""Ends the locks of folders with the tests that took them."""

from collections.abc import Iterator

import pytest

from fedstack.program.states.folder_lock import FolderLock


@pytest.fixture(autouse=True)
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    taken: list[FolderLock] = []
    acquire = FolderLock.acquire

    def noted(lock: FolderLock) -> bool:
        taken.append(lock)
        return acquire(lock)

    monkeypatch.setattr(FolderLock, "acquire", noted)
    yield
    for lock in taken:
        lock.release()
