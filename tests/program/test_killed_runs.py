"""Programs that are killed at any moment and started again end with the same files as those that are not."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import training_run

from fedstack.testing.simulation.simulated_files import SimulatedFiles

PROGRAM = Path(__file__).with_name("training_run.py")
ALGORITHMS = ["fedavg", "fedadam", "scaffold"]


def run(folder: Path, algorithm: str, kill_before: int = 0) -> int:
    command = [sys.executable, str(PROGRAM), str(folder), algorithm, str(kill_before)]
    return subprocess.run(command, timeout=300, check=False).returncode


def files(folder: Path) -> dict[str, bytes]:
    drawn = (".run", ".program", ".program_state_id")  # what is in them differs
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in drawn]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, dict[str, bytes]]:
    found = {}
    for algorithm in ALGORITHMS:
        folder = tmp_path_factory.mktemp(algorithm)
        training_run.main(folder, algorithm)
        found[algorithm] = files(folder)
        assert sorted(name for name in found[algorithm] if "controls" not in name) == [
            "metrics.csv", "metrics.jsonl", *(f"states/program_state_{version}" for version in (1, 3, 6)),
        ]  # fmt: skip
        assert found[algorithm]["metrics.csv"].count(b"\n") == 7
        assert any("controls" in name for name in found[algorithm]) == (algorithm == "scaffold")
    return found


def killed_again_and_again(folder: Path, algorithm: str, undisturbed, moments: list[int]) -> None:
    for moment in moments:
        if run(folder, algorithm, moment) == 0:
            break
    training_run.main(folder, algorithm)
    assert files(folder) == undisturbed[algorithm]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "moment"),
    [("fedavg", 2), ("fedadam", 1), ("fedadam", 5), *(("scaffold", moment) for moment in (1, 2, 3, 4, 7, 12, 25))],
)
def test_a_run_that_is_killed_ends_with_the_same_files(
    tmp_path: Path, undisturbed, algorithm: str, moment: int
) -> None:
    assert run(tmp_path, algorithm, moment) == -signal.SIGKILL
    killed_again_and_again(tmp_path, algorithm, undisturbed, [])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_runs_that_are_killed_at_thirty_moments_end_with_the_same_files(tmp_path, undisturbed, algorithm) -> None:
    chance = random.Random(0)
    for number in range(10):
        moments = [chance.randint(1, 60) for _ in range(3)]
        killed_again_and_again(tmp_path / str(number), algorithm, undisturbed, moments)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_may_be_killed_before_any_change_of_a_file(tmp_path: Path, undisturbed, algorithm: str) -> None:
    moment = 1
    while True:
        folder = tmp_path / str(moment)
        if run(folder, algorithm, moment) == 0:
            break
        killed_again_and_again(folder, algorithm, undisturbed, [])
        moment += 1
    assert moment > 30


class PowerLossError(BaseException):
    """Ends a run at a sync, as if the machine had lost its power."""


def lose_power(
    folder: Path, disks: list[SimulatedFiles], algorithm: str, before_sync: int, chance: random.Random
) -> bool:
    """Runs a program until the sync with the given number; returns whether the run ended before."""
    left = before_sync

    def fsync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise PowerLossError
        for disk in disks:
            disk.note_sync(descriptor)

    real, os.fsync = os.fsync, fsync
    try:
        training_run.main(folder, algorithm)
        return True
    except PowerLossError:
        for disk in disks:
            disk.lose(chance)
        return False
    finally:
        os.fsync = real


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(3))
def test_what_a_disk_had_not_synced_when_the_power_was_lost_is_not_missed(
    tmp_path: Path, undisturbed, algorithm: str, seed: int
) -> None:
    (tmp_path / "run").mkdir()
    chance = random.Random(seed)
    disks = [SimulatedFiles(tmp_path / "run" / name) for name in ("", "states", "controls")]
    lost = 0
    while not lose_power(tmp_path / "run", disks, algorithm, chance.randint(1, 16), chance):
        lost += 1
        assert lost < 200, "the run makes no progress"
    assert lost
    assert files(tmp_path / "run") == undisturbed[algorithm]
