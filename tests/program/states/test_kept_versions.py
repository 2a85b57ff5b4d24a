"""Which versions are there after a save, a rollback, damage, or a fork: nothing that was saved is lost silently."""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest

from fedstack import ClientStates
from fedstack.errors import ProgramStateError
from fedstack.program import FileProgramStateManager


def run(coroutine):
    return asyncio.run(coroutine)


def saved(folder: Path, versions, **options) -> None:
    manager = FileProgramStateManager(folder, **options)
    run(manager.load_latest(0))
    for version in versions:
        run(manager.save(version, version))
    manager.close()


def cut(folder: Path, *versions: int) -> None:
    for version in versions:
        os.truncate(folder / f"program_state_{version}", 20)


def test_a_run_goes_on_durably_below_damaged_versions(tmp_path: Path) -> None:
    saved(tmp_path, range(1, 7), keep_total=3)
    cut(tmp_path, 5, 6)
    for loaded in (1, 3, 5):
        manager = FileProgramStateManager(tmp_path, keep_total=3)
        assert run(manager.load_latest(0)) == (loaded, loaded)
        for version in (loaded + 1, loaded + 2):
            run(manager.save(version, version))
        manager.close()
    assert run(manager.get_versions()) == [1, 6, 7]


def test_damaged_versions_are_removed_when_they_are_old(tmp_path: Path) -> None:
    saved(tmp_path, range(1, 7), keep_total=3)
    cut(tmp_path, 5, 6)
    saved(tmp_path, [2, 10, 20], keep_total=3)
    assert run(FileProgramStateManager(tmp_path).get_versions()) == [1, 10, 20]


def test_a_save_after_a_rollback_makes_its_version_the_latest(tmp_path: Path, caplog) -> None:
    saved(tmp_path, range(1, 7), keep_total=3)
    manager = FileProgramStateManager(tmp_path, keep_total=3)
    assert run(manager.load(1, 0)) == 1
    assert run(manager.get_versions()) == [1, 5, 6]  # to look is no rollback
    with caplog.at_level(logging.WARNING, "fedstack"):
        run(manager.save(22, 2))
    assert "Removed the versions 5, 6" in caplog.text
    assert run(manager.get_versions()) == [1, 2]
    assert run(manager.load_latest(0)) == (22, 2)


def test_a_version_that_was_looked_at_leaves_the_others(tmp_path: Path) -> None:
    manager = FileProgramStateManager(tmp_path)
    for version in (1, 2, 3):
        run(manager.save(version, version))
    run(manager.load(1, 0))
    run(manager.save(4, 4))
    assert run(manager.get_versions()) == [1, 2, 3, 4]


def test_an_old_version_that_cannot_be_removed_ends_no_run(tmp_path: Path, caplog) -> None:
    saved(tmp_path, [1, 2, 3], keep_total=2)
    os.rename(tmp_path / "program_state_3", tmp_path / "aside")
    (tmp_path / "program_state_3" / "inside").mkdir(parents=True)
    manager = FileProgramStateManager(tmp_path, keep_total=2)
    with caplog.at_level(logging.WARNING, "fedstack"):
        for version in (4, 5):
            run(manager.save(version, version))
    assert run(manager.get_versions()) == [1, 3, 5]
    (warning,) = caplog.messages  # once
    assert warning.startswith(f"Cannot remove what is no longer needed in {tmp_path / 'program_state_3'}: ")


def test_versions_of_which_none_can_be_loaded_end_the_run_and_stay(tmp_path: Path) -> None:
    saved(tmp_path, [1, 2, 3])
    cut(tmp_path, 1, 2, 3)
    manager = FileProgramStateManager(tmp_path)
    for _ in range(2):
        with pytest.raises(ProgramStateError) as caught:
            run(manager.load_latest(0))
        assert f"Expected a version of the program's state in {tmp_path} that can be loaded, found" in str(caught.value)
        assert "version 3: Expected the program state" in str(caught.value)
        assert "version 1: Expected the program state" in str(caught.value)
        assert "Restore the folder, or remove these files to begin anew" in str(caught.value)
    with pytest.raises(fl.program.ProgramStateExistsError):
        run(manager.save("anew", 1))
    for version in (1, 2, 3):
        (tmp_path / f"program_state_{version}").unlink()
    assert run(manager.load_latest(0)) == (None, 0)
    run(manager.save("anew", 1))


def test_versions_whose_states_of_clients_are_away_end_the_run_and_come_back_with_them(tmp_path: Path) -> None:
    def opened() -> tuple[FileProgramStateManager, ClientStates]:
        manager = FileProgramStateManager(tmp_path / "states", keep_total=3)
        return manager, ClientStates(tmp_path / "controls", like=np.float32(0), state_manager=manager)

    manager, states = opened()
    run(manager.load_latest(0))
    for version in range(1, 6):
        states.update(["a"], [np.float32(version)])
        run(manager.save(version, version))
    manager.close()
    os.rename(tmp_path / "controls", tmp_path / "elsewhere")
    manager, _ = opened()
    with pytest.raises(ProgramStateError, match=r"version 5: .* found no file .*controls.*; version 4: "):
        run(manager.load_latest(0))
    manager.close()
    shutil.rmtree(tmp_path / "controls", ignore_errors=True)
    os.rename(tmp_path / "elsewhere", tmp_path / "controls")
    manager, states = opened()
    assert run(manager.load_latest(0)) == (5, 5)
    assert states.get("a") == 5
    manager.close()


def test_a_short_file_of_another_kind_is_no_torn_version(tmp_path: Path) -> None:
    saved(tmp_path, [1])
    (tmp_path / "program_state_2").write_bytes(b"foreign")
    with pytest.raises(ProgramStateError, match="another kind of file"):
        run(FileProgramStateManager(tmp_path).load_latest(0))


def test_a_version_that_was_loaded_before_another_run_went_on_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, range(1, 6))
    stale = FileProgramStateManager(tmp_path)
    states = ClientStates(tmp_path / "heads", like=0.0, state_manager=stale)
    assert run(stale.load(5, 0)) == 5
    saved(tmp_path, range(6, 13))
    for _ in range(2):
        with pytest.raises(ProgramStateError, match=r"another run has saved version 12 in .*; call load_latest"):
            run(stale.save(13, 13))
        with pytest.raises(ProgramStateError, match=r"another run has saved version 12"):
            states.update(["a"], [1.0])  # it would write over what the other run has
    assert run(stale.get_versions()) == [1, 9, 10, 11, 12]
    assert run(stale.load_latest(0)) == (12, 12)
    run(stale.save(13, 13))


FORKS = """
import asyncio, os, sys
from fedstack.program import FileProgramStateManager

manager = FileProgramStateManager(sys.argv[1], name="first")
asyncio.run(manager.save(1, 1))
if os.fork() == 0:
    try:
        print(asyncio.run(manager.save(2, 2)), flush=True)
    except Exception as error:
        print(error, flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


def test_a_forked_child_neither_saves_nor_keeps_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline()
            assert f"Expected process {process.pid}, which opened the run in {tmp_path}, found process " in said
            with pytest.raises(ProgramStateError, match=f"the run 'first' of process {process.pid}"):
                run(FileProgramStateManager(tmp_path).load_latest(0))  # the child has not taken it from the parent
            process.kill()
            process.wait(20)
            manager = FileProgramStateManager(tmp_path)
            assert run(manager.load_latest(0)) == (1, 1)
            run(manager.save(2, 2))
        finally:
            process.kill()  # the child ends with its input
