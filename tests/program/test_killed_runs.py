"""Programs that are killed at any moment and started again end with the same files as those that are not."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("training_run.py")


def run(folder: Path, kill_before: int = 0) -> int:
    command = [sys.executable, str(PROGRAM), str(folder), str(kill_before)]
    return subprocess.run(command, timeout=120, check=False).returncode


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != ".run"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(folder) == 0
    found = files(folder)
    assert sorted(found) == [
        "metrics.csv", "metrics.jsonl", *(f"states/program_state_{version}" for version in (1, 3, 6)),
    ]  # fmt: skip
    assert found["metrics.csv"].count(b"\n") == 7
    return found


def killed_again_and_again(folder: Path, undisturbed: dict[str, bytes], moments: list[int]) -> None:
    for moment in moments:
        if run(folder, moment) == 0:
            break
    assert run(folder) == 0
    assert files(folder) == undisturbed


@pytest.mark.parametrize("moment", [1, 2, 3, 4, 5, 7, 9, 16])
def test_a_run_that_is_killed_ends_with_the_same_files(tmp_path: Path, undisturbed, moment: int) -> None:
    assert run(tmp_path, moment) == -signal.SIGKILL
    killed_again_and_again(tmp_path, undisturbed, [])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_runs_that_are_killed_at_thirty_moments_end_with_the_same_files(tmp_path: Path, undisturbed) -> None:
    chance = random.Random(0)
    for number in range(10):
        killed_again_and_again(tmp_path / str(number), undisturbed, [chance.randint(1, 40) for _ in range(3)])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_run_may_be_killed_before_any_change_of_a_file(tmp_path: Path, undisturbed) -> None:
    moment = 1
    while True:
        folder = tmp_path / str(moment)
        if run(folder, moment) == 0:
            break
        killed_again_and_again(folder, undisturbed, [])
        moment += 1
    assert moment > 30
