"""A test that is out of time fails alone, however many run beside it and after it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.long
TESTS = Path(__file__).resolve().parents[1]
HANGS = """
import subprocess, sys, time
import pytest

def test_before():
    pass

@pytest.mark.timeout(1)
def test_that_hangs():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as child:
        with open("child", "w") as file:
            file.write(str(child.pid))
        time.sleep(1000)

def test_after():
    pass
"""
PASSES = "def test_beside_it():\n    pass\n"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_test_that_is_out_of_time_fails_alone_and_what_it_started_ends(processes, tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    for name in ("early", "late"):
        (tmp_path / f"test_{name}.py").write_text(PASSES)
    command = [sys.executable, "-m", "pytest", "-n", processes, "--no-loadscope-reorder", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, "-p", "out_of_time", "-p", "side_by_side", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
    )
    assert re.search("1 failed, 4 passed", run.stdout), run.stdout
    assert "crashed while running 'test_hangs.py::test_that_hangs'" in run.stdout
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))
