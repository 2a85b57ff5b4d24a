"""What calls were about that have failed is gone with them, even if the garbage collector never comes."""

import json
import subprocess
import sys
from pathlib import Path

import failed_calls
import pytest

WALL = 100.0


@pytest.mark.slow
@pytest.mark.parametrize("way", failed_calls.WAYS)
def test_failed_calls_keep_nothing_of_size(way: str) -> None:
    run = subprocess.run(
        [sys.executable, failed_calls.__file__, way],
        capture_output=True,
        text=True,
        timeout=WALL,
        cwd=Path(__file__).parent,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["circles"] == []
    assert found["grown"] < failed_calls.MOST_BYTES
