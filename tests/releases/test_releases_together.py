"""Clients and workers of this release and of those before it understand each other."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow]

FOLDER = Path(__file__).parent
THIS = FOLDER.parents[1]
WALL = 100.0
WHEELS = sorted(FOLDER.glob("*.whl"))
PAIRS = [("old", "new"), ("new", "old"), ("new", "new")]


@pytest.fixture(scope="session", params=WHEELS, ids=lambda wheel: wheel.name)
def releases(request, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the package of an older release and of this one."""
    older = tmp_path_factory.mktemp("release")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", str(older), str(request.param)], check=True, timeout=WALL)
    return {"old": older, "new": THIS}


def start(package: Path, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    path = os.pathsep.join(map(str, (package, FOLDER)))
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        cwd=FOLDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_there_is_an_older_release_to_talk_to() -> None:
    assert WHEELS


@pytest.mark.parametrize(("client", "worker"), PAIRS, ids=lambda age: age)
def test_values_rounds_errors_and_losses_are_the_same_between_releases(releases, client: str, worker: str) -> None:
    serve = ["-m", "fedstack", "serve", "--port", "0", "--allow-module", "release_leaves", "--heartbeat-seconds", "1"]
    with start(releases[worker], serve) as serving:
        try:
            assert serving.stdout is not None
            line = serving.stdout.readline()
            assert " serving on " in line, line
            target = line.split(" serving on ")[1].split(" (")[0]
            with start(releases[client], [str(FOLDER / "release_client.py"), target]) as calling:
                try:
                    assert calling.stdout is not None
                    said = [calling.stdout.readline(), calling.stdout.readline()]
                    if said[1] == "at the door\n":
                        serving.kill()
                    rest, errors = calling.communicate(timeout=WALL)
                finally:
                    calling.kill()
        finally:
            serving.kill()
            serving.communicate()
    assert Path(said[0]).is_relative_to(releases[client]), "the client is of another release"
    assert (said[1], rest) == ("at the door\n", "done\n"), errors
